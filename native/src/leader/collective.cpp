#include "leader/collective.hpp"

#include "base/error.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"

namespace collectives::leader {

namespace {

// Operations that make something of one operand: others leave it as it is.
constexpr bool normalises(DType dtype, Op op) { return dtype == DType::boolean || op >= Op::land; }

cuda::Form form_of(Kind kind) {
    switch (kind) {
        case Kind::allreduce:
        case Kind::reduce:
            return cuda::Form::reduce;
        case Kind::reduce_scatter:
            return cuda::Form::scatter;
        case Kind::allgather:
        case Kind::gather:
            return cuda::Form::concatenate;
        case Kind::broadcast:
            return cuda::Form::broadcast;
        case Kind::scatter:
            return cuda::Form::divide;
        default:
            return cuda::Form::transpose;
    }
}

// The bytes that this rank reads and writes.
cuda::Sizes sizes_of(const Arguments& a, const Communicator::Member& member) {
    const bool is_root = member.rank == a.root;
    cuda::Sizes sizes = cuda::sizes_of(a.kind, a.count * a.unit, member.size, is_root);
    if (a.kind == Kind::broadcast && is_root) sizes.out = 0;  // it has the array already
    return sizes;
}

class CollectiveTask final : public StreamTask {
  public:
    CollectiveTask(std::shared_ptr<Communicator> communicator, const Arguments& arguments,
                   const cuda::Sizes& sizes, bool is_captured)
        : communicator_(std::move(communicator)), a_(arguments), sizes_(sizes), is_captured_(is_captured) {
        // Memory of this library could be given to others as soon as its arrays are gone.
        blocks_[0] = cuda::block_of(a_.in, sizes_.in);
        blocks_[1] = cuda::block_of(a_.out, sizes_.out);
    }

    void issue() override {
        const Communicator::Use use(*communicator_);
        const cuda::Current current(*communicator_->context());
        const cuda::RelaxedCapture relaxed;  // memory may be allocated, and handles of it be got
        std::shared_ptr<const cuda::Block> staged_in;
        std::shared_ptr<const cuda::Block> staged_out;
        const Place in = place(a_.in, sizes_.in, staged_in);
        const Place out = place(a_.out, sizes_.out, staged_out);
        const Communicator::Call call = communicator_->publish(description(), in, out, is_captured_);
        if (a_.producer) cuda::order(*a_.producer, a_.stream);
        if (staged_in) cuda::copy(a_.stream, staged_in->address(), a_.in, sizes_.in);
        communicator_->pass(call, a_.stream);
        if (staged_out) cuda::copy(a_.stream, a_.out, staged_out->address(), sizes_.out);
        if (is_captured_) {
            for (auto* const block : {&staged_in, &staged_out, blocks_, blocks_ + 1}) {
                if (*block) communicator_->keep(std::move(*block));
            }
        } else {
            done_ = communicator_->signal_behind(a_.stream);
            staged_[0] = std::move(staged_in);
            staged_[1] = std::move(staged_out);
        }
    }
    // A captured call is over for its communicator: a replay is nothing that it sees.
    bool complete() const override { return is_captured_ || done_->is_set(); }

  private:
    Place place(cuda::Pointer address, std::uint64_t bytes, std::shared_ptr<const cuda::Block>& staged) {
        if (bytes == 0) return {};
        Place found = communicator_->place_of(address, bytes);
        if (found.allocation.route != cuda::Route::none) return found;
        staged = cuda::allocate(communicator_->context(), bytes, cuda::For::all_processes);
        return communicator_->place_of(staged->address(), bytes);
    }

    Description description() const {
        const bool alone = communicator_->member().size == 1 && !normalises(a_.dtype, a_.op);
        Description d;
        d.reduces = cuda::reduces(a_.kind) && !alone ? 1 : 0;
        d.form = cuda::reduces(a_.kind) && alone ? cuda::Form::concatenate : form_of(a_.kind);
        d.count = d.reduces != 0 ? a_.count : a_.count * a_.unit;
        d.dtype = static_cast<std::uint32_t>(a_.dtype);
        d.op = static_cast<std::uint32_t>(a_.op);
        d.root = static_cast<std::uint32_t>(a_.root);
        return d;
    }

    std::shared_ptr<Communicator> communicator_;
    Arguments a_;
    cuda::Sizes sizes_;
    bool is_captured_;
    std::shared_ptr<const cuda::Block> blocks_[2];
    std::shared_ptr<const cuda::Block> staged_[2];
    std::shared_ptr<cuda::Signal> done_;  // since it was issued
};

class MarkerTask final : public StreamTask {
  public:
    MarkerTask(std::shared_ptr<Communicator> communicator, cuda::StreamHandle stream)
        : communicator_(std::move(communicator)), stream_(stream) {}

    void issue() override {
        const Communicator::Use use(*communicator_);
        const cuda::Current current(*communicator_->context());
        done_ = communicator_->signal_behind(stream_);
    }
    bool complete() const override { return done_->is_set(); }

  private:
    const std::shared_ptr<Communicator> communicator_;
    const cuda::StreamHandle stream_;
    std::shared_ptr<cuda::Signal> done_;  // since it was issued
};

// Memory of this library is known; other memory the driver is asked about.
void check_memory(cuda::Pointer address, std::uint64_t bytes, int device, const char* what) {
    const auto block = cuda::block_of(address, bytes);
    if (block == nullptr || static_cast<int>(block->exported().device) != device) {
        cuda::check_on_device(address, bytes, device, what);
    }
}

}  // namespace

std::unique_ptr<StreamTask> make_task(std::shared_ptr<Communicator> communicator,
                                      const Arguments& arguments) {
    const cuda::PrimaryContext& context = *communicator->context();
    const cuda::Current current(context);
    const cuda::Sizes sizes = sizes_of(arguments, communicator->member());
    // A kernel that uses another address would make the device unusable for the leader's process.
    check_memory(arguments.in, sizes.in, context.device(), "x");
    check_memory(arguments.out, sizes.out, context.device(), "out");
    cuda::check_stream(arguments.stream, context);
    if (arguments.producer) cuda::check_stream(*arguments.producer, context);
    const bool is_captured = cuda::is_capturing(arguments.stream, context);
    if (is_captured && !communicator->can_capture()) {
        throw Error(ErrorKind::invalid,
                    "this communicator has captured " + std::to_string(most_captured) +
                        " calls into graphs, and no more are possible: capture further ones with comm.dup()");
    }
    Arguments checked = arguments;
    if (is_captured && checked.producer && !cuda::is_in_capture(*checked.producer, context)) {
        checked.producer.reset();
    }
    if (!is_captured && checked.producer) {
        cuda::refuse_capture(*checked.producer, context, cuda::from_capture);
    }
    return std::make_unique<CollectiveTask>(std::move(communicator), checked, sizes, is_captured);
}

std::unique_ptr<StreamTask> make_marker(std::shared_ptr<Communicator> communicator,
                                        cuda::StreamHandle stream) {
    const cuda::PrimaryContext& context = *communicator->context();
    const cuda::Current current(context);
    cuda::check_stream(stream, context);
    cuda::refuse_capture(stream, context, cuda::not_waited_for);
    return std::make_unique<MarkerTask>(std::move(communicator), stream);
}

}  // namespace collectives::leader
