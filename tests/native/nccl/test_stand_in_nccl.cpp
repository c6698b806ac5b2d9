// NCCL's communicators and collectives, on the stand-ins for NCCL and the CUDA driver.
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "device_memory.hpp"
#include "nccl/collective.hpp"

using namespace collectives;
using namespace std::chrono_literals;

namespace {

const nccl::Library& library() {
    return nccl::Library::load(std::string(std::getenv("LD_LIBRARY_PATH")) + "/libnccl.so.2");
}

nccl::UniqueId new_id() {
    nccl::UniqueId id{};
    library().check(library().api().get_unique_id(&id), "ncclGetUniqueId");
    return id;
}

void patient() {}

constexpr int newest = nccl::version(2, 32);
constexpr int hopper = 90;

std::shared_ptr<nccl::Communicator> member(const nccl::UniqueId& id, int rank, int size, int device,
                                           const nccl::Patience& patience = patient) {
    return std::make_shared<nccl::Communicator>(library(), id, nccl::Communicator::Member{rank, size, device},
                                                nccl::Communicator::Blocks{}, patience);
}

// Runs `body` on as many threads as there are ranks.
void on_ranks(int size, const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
    for (auto& thread : threads) thread.join();
}

void wait_for(const StreamTask& task) {
    while (!task.complete()) std::this_thread::sleep_for(100us);
}

std::string failure(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

nccl::Arguments arguments(nccl::Kind kind, const DeviceFloats& in, const DeviceFloats& out,
                          std::uint64_t count, Op op = Op::sum) {
    nccl::Piece piece{kind, in.address(), out.address(), count, sizeof(float), {}, 0};
    CHECK(nccl::why_not_reduced("float32", op, newest, hopper, piece.elements).empty());
    return {{piece}, cuda::legacy_stream, std::nullopt};
}

using Floats = std::vector<float>;

}  // namespace

TEST_CASE("a version is read as NVIDIA writes it") { CHECK(nccl::version_text(23203) == "2.32.3"); }

TEST_CASE("a library that is none, or not there, is refused with the reason") {
    CHECK(has(failure([] { nccl::Library::load("/no/such/libnccl.so.2"); }), "/no/such"));
    static_cast<void>(library());
    const std::string other = SharedObject::loaded("libc.so");
    CHECK(has(failure([&] { nccl::Library::load(other); }), "two of them"));
}

TEST_CASE("dtypes and ops that NCCL lacks have a reason") {
    nccl::Elements elements;
    const auto why = [&](std::string_view dtype, Op op, int version = newest, int capability = hopper) {
        return nccl::why_not_reduced(dtype, op, version, capability, elements);
    };
    CHECK(why("complex64", Op::sum) == "");
    CHECK(elements.type == nccl::type_float32);
    CHECK(elements.each == 2);
    CHECK(why("bool", Op::sum) == "");
    CHECK(elements.op == nccl::op_max);
    CHECK(why("bfloat16", Op::avg) == "");
    CHECK(elements.op == nccl::op_avg);
    CHECK(why("int32", Op::avg) == "");
    CHECK(elements.op == nccl::op_avg);
    CHECK(why("float8_e5m2", Op::sum) == "");
    CHECK(elements.type == nccl::type_float8_e5m2);
    CHECK(has(why("float8_e5m2", Op::sum, nccl::version(2, 23)), "from 2.24.0 on"));
    CHECK(has(why("float8_e4m3fn", Op::sum, newest, 89), "compute capability 9.0"));
    for (const auto& [dtype, op] :
         {std::pair("int16", Op::sum), std::pair("complex64", Op::prod), std::pair("bool", Op::avg),
          std::pair("int32", Op::bxor), std::pair("bool", Op::lxor)}) {
        CHECK(why(dtype, op) != "");
    }
}

TEST_CASE("all collectives give every rank its result") {
    const nccl::UniqueId id = new_id();
    on_ranks(2, [&](int rank) {
        const auto comm = member(id, rank, 2, rank);
        const cuda::Current current(*comm->context());
        const auto r = static_cast<float>(rank);
        const auto run = [&](nccl::Kind kind, const Floats& in, std::size_t out, std::uint64_t count,
                             int root, Op op = Op::sum) {
            const DeviceFloats from(in);
            const DeviceFloats to(Floats(out, -1));
            nccl::Arguments a = arguments(kind, from, to, count, op);
            a.pieces[0].peer = root;
            const auto task = nccl::make_task(comm, a);
            task->issue();
            wait_for(*task);
            return to.values();
        };
        using nccl::Kind;
        CHECK(run(Kind::allreduce, {r, 1, 2}, 3, 3, 0) == Floats{1, 2, 4});
        CHECK(run(Kind::allreduce, {r, 1, 2}, 3, 3, 0, Op::avg) == Floats{0.5, 1, 2});
        CHECK(run(Kind::reduce, {r, 1}, 2, 2, 1) == (rank == 1 ? Floats{1, 2} : Floats{-1, -1}));
        CHECK(run(Kind::broadcast, {r, 5}, 2, 2, 1) == Floats{1, 5});
        CHECK(run(Kind::allgather, {r, 7}, 4, 2, 0) == Floats{0, 7, 1, 7});
        CHECK(run(Kind::reduce_scatter, {r, 1, 2, 3}, 2, 2, 0) == (rank == 0 ? Floats{1, 2} : Floats{4, 6}));
        CHECK(run(Kind::gather, {r}, 2, 1, 0) == (rank == 0 ? Floats{0, 1} : Floats{-1, -1}));
        CHECK(run(Kind::scatter, {r, r + 4}, 1, 1, 1) == (rank == 0 ? Floats{1} : Floats{5}));
        CHECK(run(Kind::alltoall, {r, r + 2}, 2, 1, 0) == (rank == 0 ? Floats{0, 1} : Floats{2, 3}));
        comm->close();
        CHECK(has(failure([&] { run(Kind::allreduce, {r}, 1, 1, 0); }), "aborted"));
    });
}

TEST_CASE("a rank that does not come costs no more than the patience of the others") {
    const auto until = Clock::now() + 100ms;
    const auto patience = [&] {
        if (Clock::now() > until) throw Error(ErrorKind::op_timeout, "no more patience");
    };
    CHECK(failure([&] { member(new_id(), 0, 2, 0, patience); }) == "no more patience");
}

TEST_CASE("two ranks on one device are refused as NCCL refuses them") {
    const nccl::UniqueId id = new_id();
    on_ranks(2, [&](int rank) {
        const std::string text = failure([&] { member(id, rank, 2, 3); });
        CHECK_MESSAGE(has(text, "NCCL_MULTI_RANK_GPU_ENABLE"), text);
    });
}

TEST_CASE("abort frees a first call, which waits for a rank that makes none") {
    const nccl::UniqueId id = new_id();
    on_ranks(2, [&](int rank) {
        const auto comm = member(id, rank, 2, rank);
        if (rank == 1) return comm->abort();
        const cuda::Current current(*comm->context());
        const DeviceFloats array({1, 2});
        const auto first = nccl::make_task(comm, arguments(nccl::Kind::allreduce, array, array, 2));
        std::thread helper([&] {
            std::this_thread::sleep_for(50ms);
            comm->abort();
        });
        const std::string text = failure([&] { first->issue(); });
        CHECK_MESSAGE(has(text, "aborted"), text);
        helper.join();
        CHECK_FALSE(comm->failure());
    });
}

TEST_CASE("abort frees a stream") {
    const nccl::UniqueId id = new_id();
    on_ranks(2, [&](int rank) {
        const auto comm = member(id, rank, 2, rank);
        const cuda::Current current(*comm->context());
        const DeviceFloats array({1, 2});
        const nccl::Arguments a = arguments(nccl::Kind::allreduce, array, array, 2);
        const auto first = nccl::make_task(comm, a);
        first->issue();
        wait_for(*first);
        if (rank == 1) return comm->abort();
        const auto second = nccl::make_task(comm, a);  // rank 1 never makes it
        second->issue();
        std::this_thread::sleep_for(20ms);
        CHECK_FALSE(second->complete());
        comm->abort();
        wait_for(*second);  // the stream goes on; what it has computed is undefined
    });
}
