#include "core/local_ranks.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace collectives::local_ranks {

namespace {

struct Table {
    std::mutex mutex;
    std::map<std::pair<GroupId, int>, Receiver> receivers;
};

Table& table() {
    static Table instance;
    return instance;
}

}  // namespace

void enter(const GroupId& job, int rank, Receiver receive) {
    const std::lock_guard lock(table().mutex);
    table().receivers.insert_or_assign({job, rank}, std::move(receive));
}

void leave(const GroupId& job, int rank) {
    const std::lock_guard lock(table().mutex);
    table().receivers.erase({job, rank});
}

bool send(const GroupId& job, int to, int from, const Notice& notice) {
    const std::lock_guard lock(table().mutex);
    const auto place = table().receivers.find({job, to});
    if (place == table().receivers.end()) return false;
    place->second(from, notice);
    return true;
}

}  // namespace collectives::local_ranks
