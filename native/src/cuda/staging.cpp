#include "cuda/staging.hpp"

#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "cuda/memory.hpp"

namespace collectives::cuda {

namespace {
// Copies on streams that nothing holds up end within this time.
constexpr std::chrono::seconds copies_end{5};
}  // namespace

Staging::Staging(std::shared_ptr<const PrimaryContext> context, std::byte* memory, std::size_t bytes)
    : context_(std::move(context)),
      bytes_(bytes),
      signals_(std::make_shared<Signals>(context_)),
      to_host_(context_),
      to_device_(context_) {
    memory_.emplace(context_, memory, bytes);
}

Staging::~Staging() {
    try {
        const Current current(*context_);
        order(to_host_.handle(), to_device_.handle());
        last_.emplace(signals_->take());
        last_->set_by(to_device_.handle());
        for (const auto until = Clock::now() + copies_end; !is_free() && Clock::now() < until;) {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    } catch (const Error&) {
        return;  // the context is lost, and all copies with it
    }
}

Pointer Staging::at(std::size_t offset, std::size_t bytes) const {
    if (offset > bytes_ || bytes > bytes_ - offset) {
        throw Error(ErrorKind::invalid, "a copy reaches beyond the staging memory");
    }
    return memory_->on_device() + offset;
}

void Staging::begin(StreamHandle stream) {
    const Current current(*context_);
    order(stream, to_host_.handle());
    order(stream, to_device_.handle());
}

Signal Staging::fetch(std::size_t offset, Pointer from, std::size_t bytes) {
    const Current current(*context_);
    copy(to_host_.handle(), at(offset, bytes), from, bytes);
    Signal signal = signals_->take();
    signal.set_by(to_host_.handle());
    return signal;
}

void Staging::put(std::size_t offset, Pointer to, std::size_t bytes) {
    const Current current(*context_);
    copy(to_device_.handle(), to, at(offset, bytes), bytes);
}

void Staging::end(StreamHandle stream) {
    const Current current(*context_);
    last_.reset();
    last_.emplace(signals_->take());
    last_->set_by(to_device_.handle());
    order(to_device_.handle(), stream);
}

}  // namespace collectives::cuda
