#include "nccl/collective.hpp"

#include "base/error.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"

namespace collectives::nccl {

namespace {

struct Sizes {
    std::uint64_t in = 0;
    std::uint64_t out = 0;
};

// The bytes that this rank reads and writes.
Sizes sizes_of(const Arguments& a, const Communicator::Member& member) {
    const std::uint64_t part = a.count * a.unit;
    const std::uint64_t all = part * static_cast<std::uint64_t>(member.size);
    const bool is_root = member.rank == a.root;
    switch (a.kind) {
        case Kind::allreduce:
            return {part, part};
        case Kind::reduce:
            return {part, is_root ? part : 0};
        case Kind::broadcast:
            return {is_root ? part : 0, part};
        case Kind::allgather:
            return {part, all};
        case Kind::reduce_scatter:
            return {all, part};
        case Kind::gather:
            return {part, is_root ? all : 0};
        case Kind::scatter:
            return {is_root ? all : 0, part};
        case Kind::alltoall:
            return {all, all};
    }
    return {};
}

class CollectiveTask final : public StreamTask {
  public:
    CollectiveTask(std::shared_ptr<Communicator> communicator, const Arguments& arguments)
        : communicator_(std::move(communicator)), a_(arguments) {}

    void issue() override {
        const cuda::Current current(*communicator_->context());
        done_.emplace(communicator_->take_signal());
        if (a_.producer) cuda::order(*a_.producer, a_.stream);
        run();
        done_->set_by(a_.stream);
    }
    bool complete() const override { return done_->is_set(); }

  private:
    const void* in() const { return reinterpret_cast<const void*>(a_.in); }
    void* out() const { return reinterpret_cast<void*>(a_.out); }
    std::uint64_t bytes() const { return a_.count * a_.unit; }

    void run() {
        const std::uint64_t n = a_.count * a_.elements.each;
        const DataType type = a_.elements.type;
        const Reduction op = a_.elements.op;
        switch (a_.kind) {
            case Kind::allreduce:
                return call("ncclAllReduce", [&](const Api& api, Handle handle) {
                    return api.all_reduce(in(), out(), n, type, op, handle, a_.stream);
                });
            case Kind::reduce:
                return call("ncclReduce", [&](const Api& api, Handle handle) {
                    return api.reduce(in(), out(), n, type, op, a_.root, handle, a_.stream);
                });
            case Kind::reduce_scatter:
                return call("ncclReduceScatter", [&](const Api& api, Handle handle) {
                    return api.reduce_scatter(in(), out(), n, type, op, handle, a_.stream);
                });
            case Kind::broadcast:
                return call("ncclBroadcast", [&](const Api& api, Handle handle) {
                    return api.broadcast(in(), out(), bytes(), type_uint8, a_.root, handle, a_.stream);
                });
            case Kind::allgather:
                return call("ncclAllGather", [&](const Api& api, Handle handle) {
                    return api.all_gather(in(), out(), bytes(), type_uint8, handle, a_.stream);
                });
            case Kind::gather:
            case Kind::scatter:
            case Kind::alltoall:
                return exchange();
        }
    }

    // By one function where this NCCL has it, else by a message for each pair of ranks.
    void exchange() {
        call("ncclGroupEnd", [&](const Api& api, Handle handle) -> Result {
            if (a_.kind == Kind::gather && api.gather != nullptr) {
                return api.gather(in(), out(), bytes(), type_uint8, a_.root, handle, a_.stream);
            }
            if (a_.kind == Kind::scatter && api.scatter != nullptr) {
                return api.scatter(in(), out(), bytes(), type_uint8, a_.root, handle, a_.stream);
            }
            if (a_.kind == Kind::alltoall && api.all_to_all != nullptr) {
                return api.all_to_all(in(), out(), bytes(), type_uint8, handle, a_.stream);
            }
            if (const Result result = api.group_start(); result != success) return result;
            Result first = success;
            const auto note = [&](Result result) { first = first == success ? result : first; };
            const auto part = [&](cuda::Pointer base, int rank) {
                return reinterpret_cast<void*>(base + static_cast<std::uint64_t>(rank) * bytes());
            };
            const int size = communicator_->member().size;
            const bool is_root = communicator_->member().rank == a_.root;
            const bool is_all = a_.kind == Kind::alltoall;
            for (int peer = 0; peer < size; ++peer) {
                const bool sends = is_all || (a_.kind == Kind::gather ? peer == a_.root : is_root);
                const bool receives = is_all || (a_.kind == Kind::gather ? is_root : peer == a_.root);
                if (sends) {
                    const void* const from = a_.kind == Kind::gather ? in() : part(a_.in, peer);
                    note(api.send(from, bytes(), type_uint8, peer, handle, a_.stream));
                }
                if (receives) {
                    void* const to = a_.kind == Kind::scatter ? out() : part(a_.out, peer);
                    note(api.recv(to, bytes(), type_uint8, peer, handle, a_.stream));
                }
            }
            note(api.group_end());
            return first;
        });
    }

    void call(const char* name, const Communicator::Function& function) {
        communicator_->call(name, function);
    }

    std::shared_ptr<Communicator> communicator_;
    Arguments a_;
    std::optional<cuda::Signal> done_;  // since it was issued
};

}  // namespace

const char* why_not_reduced(DType dtype, Op op, Elements& elements) {
    switch (dtype) {
        case DType::float16:
            elements = {type_float16, 1, op_sum};
            break;
        case DType::bfloat16:
            elements = {type_bfloat16, 1, op_sum};
            break;
        case DType::float32:
            elements = {type_float32, 1, op_sum};
            break;
        case DType::float64:
            elements = {type_float64, 1, op_sum};
            break;
        case DType::int8:
            elements = {type_int8, 1, op_sum};
            break;
        case DType::int32:
            elements = {type_int32, 1, op_sum};
            break;
        case DType::int64:
            elements = {type_int64, 1, op_sum};
            break;
        case DType::uint8:
            elements = {type_uint8, 1, op_sum};
            break;
        case DType::uint32:
            elements = {type_uint32, 1, op_sum};
            break;
        case DType::uint64:
            elements = {type_uint64, 1, op_sum};
            break;
        case DType::boolean:
            // A bool is a byte that is 0 or 1: "or" is its largest value, "and" its smallest.
            switch (op) {
                case Op::sum:
                case Op::max:
                case Op::bor:
                case Op::lor:
                    elements = {type_uint8, 1, op_max};
                    return nullptr;
                case Op::prod:
                case Op::min:
                case Op::band:
                case Op::land:
                    elements = {type_uint8, 1, op_min};
                    return nullptr;
                default:
                    return "NCCL has no exclusive or";
            }
        case DType::complex64:
            elements = {type_float32, 2, op_sum};
            break;
        case DType::complex128:
            elements = {type_float64, 2, op_sum};
            break;
        case DType::int16:
        case DType::uint16:
            return "NCCL has no integers of 16 bits";
    }
    switch (op) {
        case Op::sum:
            return nullptr;
        case Op::avg:
            elements.op = op_avg;
            return is_floating(dtype) || is_complex(dtype) ? nullptr : "NCCL's average of integers overflows";
        case Op::prod:
            elements.op = op_prod;
            return is_complex(dtype) ? "NCCL has no complex numbers, and a product is not one of pairs"
                                     : nullptr;
        case Op::min:
            elements.op = op_min;
            return is_complex(dtype) ? "complex numbers have no order" : nullptr;
        case Op::max:
            elements.op = op_max;
            return is_complex(dtype) ? "complex numbers have no order" : nullptr;
        default:
            return "NCCL has only sum, prod, min, max and avg";
    }
}

std::unique_ptr<StreamTask> make_task(std::shared_ptr<Communicator> communicator,
                                      const Arguments& arguments) {
    const cuda::PrimaryContext& context = *communicator->context();
    const cuda::Current current(context);
    const Sizes sizes = sizes_of(arguments, communicator->member());
    // An address that is not the device's would make the device unusable for this process.
    cuda::check_on_device(arguments.in, sizes.in, context.device(), "x");
    cuda::check_on_device(arguments.out, sizes.out, context.device(), "out");
    cuda::check_stream(arguments.stream, context);
    if (arguments.producer) cuda::check_stream(*arguments.producer, context);
    return std::make_unique<CollectiveTask>(std::move(communicator), arguments);
}

}  // namespace collectives::nccl
