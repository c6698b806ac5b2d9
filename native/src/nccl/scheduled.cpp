#include "nccl/scheduled.hpp"

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "cuda/device.hpp"
#include "cuda/heap.hpp"
#include "cuda/kernels.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "nccl/collective.hpp"
#include "nccl/piece.hpp"

namespace collectives::nccl {

namespace {

// The reductions of a device. They stay loaded as long as the process: streams and graphs may run them after
// their communicator has ended.
class Reductions {
  public:
    Reductions(std::shared_ptr<const cuda::PrimaryContext> context, const std::string& compiler)
        : kernels_(std::move(context), compiler) {}

    static Reductions& of(const std::shared_ptr<const cuda::PrimaryContext>& context,
                          const std::string& compiler) {
        static std::mutex mutex;
        static auto& all = *new std::map<std::pair<int, std::string>, std::unique_ptr<Reductions>>();
        const std::lock_guard lock(mutex);
        std::unique_ptr<Reductions>& one = all[{context->device(), compiler}];
        if (one == nullptr) one = std::make_unique<Reductions>(context, compiler);
        return *one;
    }

    cuda::FunctionHandle find(DType dtype, Op op) {
        const std::lock_guard lock(mutex_);
        return kernels_.reduction(dtype, op);
    }
    cuda::Grid grid(int operands, std::uint64_t bytes) const {
        return kernels_.grid(cuda::Form::reduce, operands, bytes);
    }

  private:
    std::mutex mutex_;
    cuda::Kernels kernels_;
};

class ScheduledTask final : public StreamTask {
  public:
    ScheduledTask(std::shared_ptr<Communicator> communicator, ScheduledArguments&& arguments,
                  bool is_captured)
        : communicator_(std::move(communicator)), a_(std::move(arguments)), is_captured_(is_captured) {}
    ~ScheduledTask() override {
        if (temporary_ && done_) cuda::keep_until(std::move(temporary_), std::move(done_));
    }

    void issue() override {
        const cuda::Current current(*communicator_->context());
        // Before anything is in the stream, so that what is missing leaves nothing behind.
        prepare();
        try {
            run();
        } catch (...) {
            end();
            throw;
        }
        end();
    }
    // A captured call is over for its communicator: a replay is nothing that it sees.
    bool complete() const override { return is_captured_ || done_->is_set(); }

  private:
    const Operation& operation() const { return a_.rounds->operation(); }
    bool copies_input() const { return a_.in != 0 && a_.in == a_.out && operation().in_bytes() > 0; }

    void prepare() {
        std::optional<cuda::RelaxedCapture> relaxed;  // memory may be allocated, and code be loaded
        if (is_captured_) relaxed.emplace();
        const std::uint64_t bytes = a_.rounds->temporary() + (copies_input() ? operation().in_bytes() : 0);
        if (bytes > 0) {
            temporary_ = cuda::allocate(communicator_->context(), bytes, cuda::For::this_process);
            addresses_[buffer_scratch] = temporary_->address();
        }
        if (a_.rounds->reduces()) {
            reductions_ = &Reductions::of(communicator_->context(), a_.compiler);
            const bool averages = operation().op() == Op::avg;
            partial_ = reductions_->find(operation().dtype(), averages ? Op::sum : operation().op());
            final_ = averages ? reductions_->find(operation().dtype(), Op::avg) : partial_;
        }
        if (is_captured_) {
            communicator_->note_captured();
            if (temporary_) communicator_->keep(std::move(temporary_));
        } else {
            done_ = std::make_shared<cuda::Signal>(communicator_->take_signal());
        }
    }

    void run() {
        if (a_.producer) cuda::order(*a_.producer, a_.stream);
        addresses_[buffer_in] = a_.in;
        addresses_[buffer_out] = a_.out;
        if (copies_input()) {
            addresses_[buffer_in] = addresses_[buffer_scratch] + a_.rounds->temporary();
            cuda::copy(a_.stream, addresses_[buffer_in], a_.in, operation().in_bytes());
        }
        for (const Rounds::Round& round : a_.rounds->all()) {
            exchange(round);
            for (const Rounds::Work& work : round.works) perform(work);
        }
    }

    // The stream sets the signal also behind what was put into it before an error.
    void end() {
        if (done_) done_->set_by(a_.stream);
    }

    cuda::Pointer at(const Rounds::Place& place) const {
        return addresses_[static_cast<std::size_t>(place.buffer)] + place.offset;
    }

    void exchange(const Rounds::Round& round) {
        if (round.messages.empty()) return;
        std::vector<Piece> pieces;
        for (const Rounds::Message& message : round.messages) {
            Piece piece;
            piece.kind = message.sends ? Kind::send : Kind::recv;
            (message.sends ? piece.in : piece.out) = at(message.place);
            piece.count = message.bytes;
            piece.peer = message.peer;
            pieces.push_back(piece);
        }
        communicator_->call("ncclGroupEnd", [&](const Api& api, Handle handle) {
            return nccl::run(pieces, communicator_->member(), api, handle, a_.stream);
        });
    }

    void perform(const Rounds::Work& work) const {
        if (work.operands.size() == 1) {
            cuda::copy(a_.stream, at(work.to), at(work.operands[0]), work.bytes);
            return;
        }
        const auto operands = static_cast<int>(work.operands.size());
        cuda::KernelArguments arguments{};
        for (std::size_t i = 0; i < work.operands.size(); ++i) arguments.in[i] = at(work.operands[i]);
        arguments.out[0] = at(work.to);
        arguments.count = work.bytes / operation().unit();
        arguments.size = static_cast<unsigned>(operands);
        arguments.divisor = static_cast<unsigned>(operation().program().size);
        arguments.form = cuda::Form::reduce;
        cuda::launch(work.final ? final_ : partial_, reductions_->grid(operands, work.bytes), a_.stream,
                     &arguments);
    }

    const std::shared_ptr<Communicator> communicator_;
    const ScheduledArguments a_;
    const bool is_captured_;
    std::shared_ptr<const cuda::Block> temporary_;
    std::array<cuda::Pointer, 3> addresses_{};  // of input, output and temporary memory
    Reductions* reductions_ = nullptr;
    cuda::FunctionHandle partial_ = nullptr;
    cuda::FunctionHandle final_ = nullptr;
    std::shared_ptr<cuda::Signal> done_;  // since it was issued, unless it is captured
};

}  // namespace

std::unique_ptr<StreamTask> make_scheduled_task(std::shared_ptr<Communicator> communicator,
                                                ScheduledArguments arguments) {
    const cuda::PrimaryContext& context = *communicator->context();
    const cuda::Current current(context);
    const Operation& operation = arguments.rounds->operation();
    // An address that is not the device's would make the device unusable for this process.
    if (arguments.in != 0) {
        cuda::check_on_device(arguments.in, operation.in_bytes(), context.device(), "x");
    }
    if (arguments.out != 0) {
        cuda::check_on_device(arguments.out, operation.out_bytes(), context.device(), "out");
    }
    cuda::check_stream(arguments.stream, context);
    const bool is_captured = cuda::is_capturing(arguments.stream, context);
    if (is_captured) {
        if (arguments.producer && !cuda::is_in_capture(*arguments.producer, context)) {
            arguments.producer.reset();
        }
    } else if (arguments.producer) {
        cuda::check_stream(*arguments.producer, context);
        cuda::refuse_capture(*arguments.producer, context, cuda::from_capture);
    }
    return std::make_unique<ScheduledTask>(std::move(communicator), std::move(arguments), is_captured);
}

}  // namespace collectives::nccl
