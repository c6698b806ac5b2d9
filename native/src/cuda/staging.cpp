#include "cuda/staging.hpp"

#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "base/wait.hpp"
#include "cuda/memory.hpp"

namespace collectives::cuda {

namespace {
// Copies that nothing holds up end within this time.
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

bool Staging::drain() noexcept {
    try {
        const Current current(*context_);
        reuse();
        order(to_host_.handle(), to_device_.handle());
        last_.emplace(signals_->take());
        last_->set_by(to_device_.handle());
        for (const auto until = Clock::now() + copies_end; !is_free() && Clock::now() < until;) {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        return is_free();
    } catch (const Error&) {
        return true;  // the context is lost, and all copies with it
    }
}

Pointer Staging::at(const Copy& copy) const {
    if (copy.offset > bytes_ || copy.bytes > bytes_ - copy.offset) {
        throw Error(ErrorKind::invalid, "a copy reaches beyond the staging memory");
    }
    return memory_->on_device() + copy.offset;
}

void Staging::begin(StreamHandle stream) {
    const Current current(*context_);
    order(stream, to_host_.handle());
    order(stream, to_device_.handle());
}

Signal Staging::fetch(std::span<const Copy> copies) {
    const Current current(*context_);
    for (const Copy& one : copies) copy(to_host_.handle(), at(one), one.on_device, one.bytes);
    Signal signal = signals_->take();
    signal.set_by(to_host_.handle());
    return signal;
}

void Staging::put(std::span<const Copy> copies) {
    const Current current(*context_);
    for (const Copy& one : copies) copy(to_device_.handle(), one.on_device, at(one), one.bytes);
}

void Staging::reuse() {
    const Current current(*context_);
    order(to_device_.handle(), to_host_.handle());
}

void Staging::end(StreamHandle stream) {
    const Current current(*context_);
    last_.reset();
    last_.emplace(signals_->take());
    last_->set_by(to_device_.handle());
    order(to_device_.handle(), stream);
}

}  // namespace collectives::cuda
