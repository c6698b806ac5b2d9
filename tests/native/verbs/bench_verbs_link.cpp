// One link between two RDMA devices of this machine, an end in each of two processes, as perftest measures
// it:
//   bench_verbs_link        1 MiB one way, in MB/s (10^6 bytes), and 8 bytes one way, in microseconds
// Prints "bandwidth MB/s: N" and "latency us: N". tests/verbs/beside_perftest.py compares them.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "link/lasting_memory.hpp"
#include "verbs/link.hpp"

using namespace collectives;
using namespace collectives::verbs;

namespace {

using Seconds = std::chrono::duration<double>;
constexpr std::size_t large = 1 << 20;
constexpr std::size_t small = 8;
constexpr unsigned turns_between_looks = 1000;
constexpr int large_messages = 100;
constexpr int small_messages = 2000;

struct End {
    End(int rank, int socket) {
        const Port port = choose_port(rank);
        auto own = std::make_unique<OwnEnd>(Device::open(port.device), port, Settings());
        const Endpoint mine = own->describe();
        Endpoint theirs;
        if (::write(socket, &mine, sizeof(mine)) != sizeof(mine) ||
            ::recv(socket, &theirs, sizeof(theirs), MSG_WAITALL) != sizeof(theirs)) {
            throw std::runtime_error("the ends cannot be exchanged");
        }
        check(theirs, port, record_bytes, "the peer");
        link = std::make_unique<VerbsLink>(Peer{1 - rank, "", ""}, rank, std::move(own), theirs,
                                           UniqueFd(socket), giving_up);
    }

    void send(std::size_t n) {
        const Context context = next();
        link->begin(context, n);
        std::size_t written = 0;
        while (!link->finished()) written += link->write(memory.data() + written, n - written);
    }
    void receive(std::size_t n) {
        const Context context = next();
        link->expect(context, n);
        std::size_t read = 0;
        // As a rank that waits, this looks for a peer that is gone only now and then.
        for (unsigned turn = 1; !link->received(); ++turn) {
            read += link->read(memory.data() + read, n - read, Stores::cached);
            const char* const why = turn % turns_between_looks == 0 ? link->lost() : nullptr;
            if (why != nullptr) throw std::runtime_error(why);
        }
    }
    Context next() {
        Call call;
        call.sequence = ++sequence;
        return Context(call);
    }

    std::vector<std::byte> memory = std::vector<std::byte>(large);
    std::uint64_t stretch = LastingMemory::of_process().begin(memory);
    GivingUp giving_up;
    std::unique_ptr<VerbsLink> link;
    std::uint64_t sequence = 0;
};

// Seconds for a message, from rank 0 to rank 1, answered by 8 bytes at the end.
double bandwidth(End& end, int rank) {
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < large_messages; ++i) rank == 0 ? end.send(large) : end.receive(large);
    rank == 0 ? end.receive(small) : end.send(small);
    return Seconds(std::chrono::steady_clock::now() - begun).count() / large_messages;
}

double latency(End& end, int rank) {
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < small_messages; ++i) {
        rank == 0 ? end.send(small) : end.receive(small);
        rank == 0 ? end.receive(small) : end.send(small);
    }
    return Seconds(std::chrono::steady_clock::now() - begun).count() / (2 * small_messages);
}

void run(int rank, int socket) {
    End end(rank, socket);
    bandwidth(end, rank);  // to warm up
    const double each = bandwidth(end, rank);
    const double one_way = latency(end, rank);
    if (rank != 0) return;
    std::printf("bandwidth MB/s: %.1f\nlatency us: %.2f\n", static_cast<double>(large) / each / 1e6,
                one_way * 1e6);
}

}  // namespace

int main() {
    std::array<int, 2> sockets{};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) != 0) return 1;
    const pid_t child = ::fork();  // before anything is registered
    const int rank = child == 0 ? 1 : 0;
    ::close(sockets[1 - static_cast<std::size_t>(rank)]);
    int status = 0;
    try {
        run(rank, sockets[static_cast<std::size_t>(rank)]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        status = 1;
    }
    if (rank == 1) ::_exit(status);
    int theirs = 0;
    ::waitpid(child, &theirs, 0);
    return status != 0 || theirs != 0;
}
