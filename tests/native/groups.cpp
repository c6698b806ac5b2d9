#include "groups.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>

namespace collectives::testing {

UniqueFd listen_tcp(std::string& address) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(name);
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
    REQUIRE(::listen(fd.get(), 128) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0);
    address = "127.0.0.1 " + std::to_string(ntohs(name.sin_port));
    return fd;
}

UniqueFd listen_local(std::string& address) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    // Autobind: the kernel picks a free abstract name.
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(sa_family_t)) == 0);
    REQUIRE(::listen(fd.get(), 128) == 0);
    socklen_t length = sizeof(name);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0);
    address.assign(name.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
    return fd;
}

Group::Options options(int rank, int size, std::size_t segment, const std::string& secret, bool crowded) {
    Group::Options options;
    options.identity.group.fill(std::byte{7});
    options.identity.epoch = 3;
    options.identity.rank = rank;
    options.identity.size = size;
    options.identity.secret = secret;
    options.segment = segment;
    options.oversubscribed = true;
    options.crowded = crowded;
    return options;
}

World::World(int size, const std::string& scheme, std::size_t segment, bool crowded,
             const std::vector<int>& homes, Heartbeats heartbeats) {
    std::vector<std::string> addresses(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
        Group::Options own = options(rank, size, segment, "secret", crowded);
        own.job = std::make_shared<Job>(heartbeats);
        own.host = "host" + std::to_string(rank);
        if (!homes.empty()) own.home = homes[static_cast<std::size_t>(rank)];
        // With cores of their own, ranks start operations themselves, see Group::help.
        own.oversubscribed = crowded || homes.empty();
        ranks.push_back(std::make_unique<Group>(own));
        std::string& address = addresses[static_cast<std::size_t>(rank)];
        if (scheme == "inproc") {
            address = ranks.back()->links().listen_in_process("inproc");
        } else {
            const bool is_local = scheme == "shm" || scheme == "vm-write";
            UniqueFd fd = is_local ? listen_local(address) : listen_tcp(address);
            ranks.back()->links().listen(scheme, std::move(fd));
        }
    }
    for (int rank = 0; rank < size; ++rank) {
        for (int peer = 0; peer < size; ++peer) {
            if (peer == rank) continue;
            ranks[static_cast<std::size_t>(rank)]->links().route(
                peer, scheme, {addresses[static_cast<std::size_t>(peer)]}, "host" + std::to_string(peer));
        }
    }
}

void World::each(const std::function<void(int rank, Group&)>& work) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        threads.emplace_back([&, rank] { work(static_cast<int>(rank), *ranks[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
}

Step send(std::vector<int> peers, Chunk chunk, std::vector<Dependency> after) {
    return {StepKind::send, false, chunk, std::move(peers), {}, std::move(after)};
}

Step recv(int peer, Chunk chunk, std::vector<Dependency> after) {
    return {StepKind::recv, false, chunk, {peer}, {}, std::move(after)};
}

std::shared_ptr<const Program> all_to_all(int rank, int size, bool flat) {
    std::vector<int> peers;
    std::vector<Operand> operands;
    for (int r = 0; r < size; ++r) {
        if (r != rank) peers.push_back(r);
        operands.push_back(r == rank ? Operand{-1, {buffer_in, 0, 1}} : Operand{r, {}});
    }
    std::vector<Step> steps{send(peers, {buffer_in, 0, 1})};
    steps.push_back({StepKind::reduce, true, {buffer_out, 0, 1}, {}, operands, {}});
    const Exchange all{{buffer_in, 0, 1}, {buffer_in, 0, 1}};
    return std::make_shared<const Program>(rank, size, 1, 1, std::vector<std::vector<Block>>{}, steps, false,
                                           flat ? std::optional(all) : std::nullopt);
}

std::shared_ptr<const Program> two_shot(int rank, int size, bool pooled, bool in_place) {
    const auto block = [](int r) { return static_cast<std::uint32_t>(r); };
    std::vector<Step> steps;
    std::vector<int> others;
    std::vector<Operand> operands;
    for (int r = 0; r < size; ++r) {
        operands.push_back(r == rank ? Operand{-1, {buffer_in, block(r), 1}} : Operand{r, {}});
        if (r == rank) continue;
        others.push_back(r);
        steps.push_back(send({r}, {buffer_in, block(r), 1}));
    }
    const auto reduction = static_cast<std::uint32_t>(steps.size());
    const Chunk mine{buffer_out, block(rank), 1};
    steps.push_back({StepKind::reduce, true, mine, {}, operands, {}});
    steps.push_back(send(others, mine, {{reduction, buffer_out, block(rank), block(rank)}}));
    for (std::uint32_t i = 0; i < others.size(); ++i) {
        const std::uint32_t b = block(others[i]);
        std::vector<Dependency> after;
        if (in_place) after.push_back({i, buffer_out, b, b});
        steps.push_back(recv(others[i], {buffer_out, b, 1}, after));
    }
    const auto blocks = static_cast<std::uint32_t>(size);
    return std::make_shared<const Program>(rank, size, blocks, blocks, std::vector<std::vector<Block>>{},
                                           steps, pooled);
}

std::shared_ptr<const Program> ring(int rank, int size) {
    const int right = (rank + 1) % size;
    const int left = (rank + size - 1) % size;
    const auto block = [&](int i) { return static_cast<std::uint32_t>(((i % size) + size) % size); };
    const auto same = [](std::uint32_t step, std::uint32_t b) { return Dependency{step, buffer_out, b, b}; };
    std::vector<Step> steps;
    for (int i = 0; i < size - 1; ++i) {
        const std::uint32_t out = block(rank - i);
        const auto before = static_cast<std::uint32_t>(steps.size()) - 1;
        if (i == 0) {
            steps.push_back(send({right}, {buffer_in, out, 1}));
        } else {
            steps.push_back(send({right}, {buffer_out, out, 1}, {same(before, out)}));
        }
        const std::uint32_t in = block(rank - i - 1);
        steps.push_back({StepKind::reduce,
                         i == size - 2,
                         {buffer_out, in, 1},
                         {},
                         {{left, {}}, {-1, {buffer_in, in, 1}}},
                         {}});
    }
    for (int i = 0; i < size - 1; ++i) {
        const std::uint32_t out = block(rank + 1 - i);
        steps.push_back(
            send({right}, {buffer_out, out, 1}, {same(static_cast<std::uint32_t>(steps.size()) - 1, out)}));
        // The block that arrives was sent in the first half: its old content must be gone.
        steps.push_back(
            recv(left, {buffer_out, block(rank - i), 1},
                 i == 0 ? std::vector<Dependency>{}
                        : std::vector<Dependency>{same(static_cast<std::uint32_t>(2 * i), block(rank - i))}));
    }
    return std::make_shared<const Program>(rank, size, static_cast<std::uint32_t>(size),
                                           static_cast<std::uint32_t>(size),
                                           std::vector<std::vector<Block>>{}, steps);
}

std::shared_ptr<const Operation> sum_of_floats(const std::shared_ptr<const Program>& program, std::uint64_t n,
                                               Op op) {
    Call call;
    call.count = n;
    call.dtype = static_cast<std::uint8_t>(DType::float32);
    call.op = static_cast<std::uint8_t>(op);
    return std::make_shared<const Operation>(program, DType::float32, op, Bounds(n, program->in_blocks),
                                             Bounds(n, program->out_blocks), call);
}

std::optional<Error> error_of(const std::function<void()>& work) {
    try {
        work();
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

void check_late(std::span<const std::optional<Error>> errors, std::size_t late) {
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
        if (rank == late) continue;
        REQUIRE(errors[rank].has_value());
        const bool told = errors[rank]->kind() == ErrorKind::op_timeout;
        if (told) CHECK(errors[rank]->ranks() == std::vector<int>{static_cast<int>(late)});
        // The first to give up ends the group for the other ones.
        CHECK((told || errors[rank]->kind() == ErrorKind::peer_lost));
    }
}

void check_gone(std::span<const std::optional<Error>> errors, std::size_t gone) {
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
        if (rank == gone) continue;
        REQUIRE(errors[rank].has_value());
        CHECK(errors[rank]->kind() == ErrorKind::peer_lost);
        CHECK(errors[rank]->ranks() == std::vector<int>{static_cast<int>(gone)});
    }
}

void check_many_at_a_time(int rank, int size, Group& group, std::span<const std::size_t> sizes,
                          std::span<std::shared_ptr<const Program> (*const)(int, int)> makes, int round) {
    std::vector<std::vector<float>> xs(30);
    std::vector<std::vector<float>> ys(30);
    std::vector<std::shared_ptr<Work>> works;
    for (std::size_t i = 0; i < xs.size(); ++i) {
        const std::size_t n = sizes[i % sizes.size()];
        xs[i] = values(rank, n);
        ys[i].resize(n);
        const auto make = makes[(i / 2 + static_cast<std::size_t>(round)) % makes.size()];
        works.push_back(group.start(sum_of_floats(make(rank, size), n), raw(xs[i]), raw(ys[i]), 30.0));
    }
    REQUIRE(group.wait(*works.back(), 30.0, {}));
    for (std::size_t i = 0; i < ys.size(); ++i) REQUIRE(ys[i] == total(size, sizes[i % sizes.size()]));
}

}  // namespace collectives::testing
