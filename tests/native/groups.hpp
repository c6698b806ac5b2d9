// Groups of ranks as threads of the test, over real sockets and real shared memory.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/group.hpp"
#include "data.hpp"

namespace collectives::testing {

UniqueFd listen_tcp(std::string& address);
UniqueFd listen_local(std::string& address);

Group::Options options(int rank, int size, std::size_t segment = 0, const std::string& secret = "secret",
                       bool crowded = true);

// Without a control plane, a rank learns of another's error only from what happens on their link.
inline constexpr Heartbeats no_control_plane{std::chrono::seconds(1), std::chrono::seconds(0)};

inline const std::vector<std::string> all_schemes{"inproc", "shm", "tcp"};

struct World {
    // `homes`: the core of each rank, none known if it is empty; if not `crowded`, each has one core.
    // `heartbeats`: of the control plane.
    explicit World(int size, const std::string& scheme, std::size_t segment = 0, bool crowded = true,
                   const std::vector<int>& homes = {}, Heartbeats heartbeats = {});

    // Run `work` for each rank, each on a thread of its own.
    void each(const std::function<void(int rank, Group&)>& work);

    std::vector<std::unique_ptr<Group>> ranks;
};

// --- schedules, by hand

Step send(std::vector<int> peers, Chunk chunk, std::vector<Dependency> after = {});
Step recv(int peer, Chunk chunk, std::vector<Dependency> after = {});

// Everyone sends everything to everyone and reduces in rank order.
std::shared_ptr<const Program> all_to_all(int rank, int size, bool flat = false);

inline std::shared_ptr<const Program> one_shot(int rank, int size) { return all_to_all(rank, size); }

// The same on a board, where ranks share memory and there is not too much.
inline std::shared_ptr<const Program> flat(int rank, int size) { return all_to_all(rank, size, true); }

// Each reduces a block of everyone's and sends it to all. `in_place`: for one array, so that a result may
// come once what it replaces has been sent.
std::shared_ptr<const Program> two_shot(int rank, int size, bool pooled, bool in_place = false);

inline std::shared_ptr<const Program> two_shot(int rank, int size) { return two_shot(rank, size, false); }
// The same, and where they can they add up in one place.
inline std::shared_ptr<const Program> pooled(int rank, int size) { return two_shot(rank, size, true); }

// Reduce-scatter and allgather around the ring; each step works on what the one before has finished.
std::shared_ptr<const Program> ring(int rank, int size);

std::shared_ptr<const Operation> sum_of_floats(const std::shared_ptr<const Program>& program, std::uint64_t n,
                                               Op op = Op::sum);

// What an operation raised.
std::optional<Error> error_of(const std::function<void()>& work);

// One rank has not come, and the others have all had an error because of it.
void check_late(std::span<const std::optional<Error>> errors, std::size_t late);

// The same of one that has left.
void check_gone(std::span<const std::optional<Error>> errors, std::size_t gone);

inline std::byte* raw(std::vector<float>& data) { return reinterpret_cast<std::byte*>(data.data()); }

// Thirty sums of those sizes at a time, made in all those ways.
void check_many_at_a_time(int rank, int size, Group& group, std::span<const std::size_t> sizes,
                          std::span<std::shared_ptr<const Program> (*const)(int, int)> makes, int round);

}  // namespace collectives::testing
