#include "nccl/collective.hpp"

#include "base/error.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace collectives::nccl {

namespace {

// NCCL chooses among its algorithms, each with connections of its own, by the size of a call.
constexpr std::size_t short_part = 64;
constexpr std::size_t long_part = 4 << 20;

class Marker : public StreamTask {
  public:
    Marker(std::shared_ptr<Communicator> communicator, Stream stream)
        : communicator_(std::move(communicator)), stream_(stream) {}

    void issue() override {
        const cuda::Current current(*communicator_->context());
        done_.emplace(communicator_->take_signal());
        put_before();
        done_->set_by(stream_);
    }
    bool complete() const override { return done_->is_set(); }

  protected:
    // Put work into the stream. The device's context is current.
    virtual void put_before() {}

    const std::shared_ptr<Communicator> communicator_;
    const Stream stream_;

  private:
    std::optional<cuda::Signal> done_;  // since it was issued
};

const char* name_of(std::span<const Piece> pieces) {
    if (pieces.size() != 1) return "ncclGroupEnd";
    switch (pieces[0].kind) {
        case Kind::allreduce:
            return "ncclAllReduce";
        case Kind::reduce:
            return "ncclReduce";
        case Kind::broadcast:
            return "ncclBroadcast";
        case Kind::allgather:
            return "ncclAllGather";
        case Kind::reduce_scatter:
            return "ncclReduceScatter";
        case Kind::send:
            return "ncclSend";
        case Kind::recv:
            return "ncclRecv";
        default:  // by one function or by messages
            return "ncclGroupEnd";
    }
}

void call(Communicator& communicator, std::span<const Piece> pieces, Stream stream) {
    // The first call of a kind allocates memory, which would end a capture in another stream.
    const cuda::RelaxedCapture relaxed;
    communicator.call(name_of(pieces), [&](const Api& api, Handle handle) {
        return run(pieces, communicator.member(), api, handle, stream);
    });
}

class CollectiveTask final : public Marker {
  public:
    CollectiveTask(std::shared_ptr<Communicator> communicator, Arguments&& arguments)
        : Marker(std::move(communicator), arguments.stream), a_(std::move(arguments)) {}

  private:
    void put_before() override {
        if (a_.producer) cuda::order(*a_.producer, stream_);
        call(*communicator_, a_.pieces, stream_);
    }

    Arguments a_;
};

class CapturedTask final : public StreamTask {
  public:
    CapturedTask(std::shared_ptr<Communicator> communicator, Arguments&& arguments)
        : communicator_(std::move(communicator)), a_(std::move(arguments)) {}

    void issue() override {
        const cuda::Current current(*communicator_->context());
        communicator_->note_captured();
        if (a_.producer) cuda::order(*a_.producer, a_.stream);
        call(*communicator_, a_.pieces, a_.stream);
    }
    bool complete() const override { return true; }

  private:
    std::shared_ptr<Communicator> communicator_;
    Arguments a_;
};

class ConnectingTask final : public Marker {
  public:
    ConnectingTask(std::shared_ptr<Communicator> communicator, std::vector<Kind>&& kinds,
                   std::unique_ptr<cuda::OwnStream> stream)
        : Marker(std::move(communicator), stream->handle()),
          kinds_(std::move(kinds)),
          own_(std::move(stream)) {}

  private:
    void put_before() override {
        // Here, so that all ranks learn of it if a device's memory is full.
        const std::size_t bytes = static_cast<std::size_t>(communicator_->member().size) * long_part;
        in_ = std::make_unique<cuda::DeviceMemory>(communicator_->context(), bytes);
        out_ = std::make_unique<cuda::DeviceMemory>(communicator_->context(), bytes);
        for (const std::size_t part : {short_part, long_part}) {
            for (const Kind kind : kinds_) call(*communicator_, pieces(kind, part), stream_);
        }
    }

    // Messages: one to and from each other rank.
    std::vector<Piece> pieces(Kind kind, std::size_t part) const {
        Piece one{kind, in_->address(), out_->address(), part, 1, {}, 0};
        if (kind != Kind::send && kind != Kind::recv) return {one};
        std::vector<Piece> found;
        for (int peer = 0; peer < communicator_->member().size; ++peer) {
            if (peer == communicator_->member().rank) continue;
            one.peer = peer;
            one.kind = Kind::send;
            found.push_back(one);
            one.kind = Kind::recv;
            found.push_back(one);
        }
        return found;
    }

    std::vector<Kind> kinds_;
    std::unique_ptr<cuda::OwnStream> own_;
    std::unique_ptr<cuda::DeviceMemory> in_;
    std::unique_ptr<cuda::DeviceMemory> out_;
};

}  // namespace

std::unique_ptr<StreamTask> make_task(std::shared_ptr<Communicator> communicator, Arguments arguments) {
    const cuda::PrimaryContext& context = *communicator->context();
    const cuda::Current current(context);
    for (const Piece& piece : arguments.pieces) check(piece, communicator->member());
    cuda::check_stream(arguments.stream, context);
    if (cuda::is_capturing(arguments.stream, context)) {
        if (arguments.producer && !cuda::is_in_capture(*arguments.producer, context)) {
            arguments.producer.reset();
        }
        return std::make_unique<CapturedTask>(std::move(communicator), std::move(arguments));
    }
    if (arguments.producer) {
        cuda::check_stream(*arguments.producer, context);
        cuda::refuse_capture(*arguments.producer, context, cuda::from_capture);
    }
    return std::make_unique<CollectiveTask>(std::move(communicator), std::move(arguments));
}

std::unique_ptr<StreamTask> make_connecting_task(std::shared_ptr<Communicator> communicator,
                                                 std::vector<Kind> kinds) {
    const cuda::Current current(*communicator->context());
    auto stream = std::make_unique<cuda::OwnStream>(communicator->context());
    return std::make_unique<ConnectingTask>(std::move(communicator), std::move(kinds), std::move(stream));
}

std::unique_ptr<StreamTask> make_marker(std::shared_ptr<Communicator> communicator, Stream stream) {
    const cuda::PrimaryContext& context = *communicator->context();
    const cuda::Current current(context);
    cuda::check_stream(stream, context);
    cuda::refuse_capture(stream, context, cuda::not_waited_for);
    return std::make_unique<Marker>(std::move(communicator), stream);
}

}  // namespace collectives::nccl
