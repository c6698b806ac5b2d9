// Messages of the stand-in for NCCL, and groups of them.
#include <algorithm>
#include <cstring>

#include "comm.hpp"

using namespace stand_in;

namespace {

struct Message {
    bool sends;
    char* data;
    std::size_t bytes;
    int peer;
    std::size_t moved = 0;
    bool over = false;
};
thread_local std::vector<Message> messages;
thread_local Comm* messages_of = nullptr;
thread_local void* messages_in = nullptr;

// Returns whether anything moved.
bool move(Comm* comm, Message& m) {
    Shared::Box& box =
        m.sends ? comm->shared->boxes[comm->rank][m.peer] : comm->shared->boxes[m.peer][comm->rank];
    if (m.sends != (box.length.load() == 0)) return false;
    if (m.sends) {
        const std::size_t now = std::min(box_bytes, m.bytes - m.moved);
        std::memcpy(box.data, m.data + m.moved, now);
        m.moved += now;
        box.length.store(static_cast<std::uint32_t>(now) + 1);
    } else {
        const std::size_t now = std::min<std::size_t>(box.length.load() - 1, m.bytes - m.moved);
        std::memcpy(m.data + m.moved, box.data, now);
        m.moved += now;
        box.length.store(0);
    }
    m.over = m.moved == m.bytes;
    return true;
}

int run_messages() {
    if (messages.empty()) return 0;
    Comm* const comm = messages_of;
    const auto body = [comm, all = messages](void* stream) {
        return enqueue(comm, stream, [comm, all] {
            std::vector<Message> left = all;  // a graph may run it again
            while (!comm->abort) {
                bool moved = false;
                bool over = true;
                // Messages to one rank, and from one rank, go one after another.
                bool held[2][most_ranks] = {};
                for (Message& m : left) {
                    if (!m.over && !held[m.sends][m.peer]) moved |= move(comm, m);
                    held[m.sends][m.peer] |= !m.over;
                    over &= m.over;
                }
                if (over) return;
                if (!moved) Comm::nap();
            }
        });
    };
    messages.clear();
    return run_call(comm, messages_in, body);
}

int message(bool sends, void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
    messages.push_back({sends, static_cast<char*>(data), count * size_of(type), peer});
    messages_of = comm;
    messages_in = stream;
    return in_group() ? 0 : run_messages();
}

}  // namespace

EXPORT int ncclGroupStart() {
    begin_group();
    return 0;
}
EXPORT int ncclGroupEnd() {
    const int result = run_messages();  // joins the group's other calls
    const int ended = end_group();
    return result != 0 ? result : ended;
}
EXPORT int ncclSend(const void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
    if (const int result = check(data, count * size_of(type), "sendbuff"); result != 0) return result;
    return message(true, const_cast<void*>(data), count, type, peer, comm, stream);
}
EXPORT int ncclRecv(void* data, std::size_t count, int type, int peer, Comm* comm, void* stream) {
    if (const int result = check(data, count * size_of(type), "recvbuff"); result != 0) return result;
    return message(false, data, count, type, peer, comm, stream);
}
