// Signals by which the host sees what streams have reached: words of registered host memory, which streams
// write.
//
// Invariant: a word belongs to one signal at a time. A signal that was given to a stream is not used again
// before the stream has written it, so a late write cannot be taken for another. Memory that a stream may
// still write stays registered, even if nobody looks at it any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/registered.hpp"

namespace collectives::cuda {

class Signals;

// One word. `set` is a load of host memory, and may be called from any thread.
class Signal {
  public:
    Signal(Signal&& other) noexcept;
    Signal& operator=(Signal&&) = delete;
    ~Signal();

    // The stream sets the signal when it has done what is in it now. Once for each signal.
    void set_by(StreamHandle stream);
    bool is_set() const { return word_->load(std::memory_order_acquire) == value_; }

  private:
    friend class Signals;
    Signal(std::shared_ptr<Signals> owner, std::atomic<std::uint32_t>* word, Pointer on_device,
           std::uint32_t value)
        : owner_(std::move(owner)), word_(word), on_device_(on_device), value_(value) {}

    std::shared_ptr<Signals> owner_;  // null once it was moved from
    std::atomic<std::uint32_t>* word_;
    Pointer on_device_;
    std::uint32_t value_;
    bool given_ = false;
};

class Signals : public std::enable_shared_from_this<Signals> {
  public:
    explicit Signals(std::shared_ptr<const PrimaryContext> context);
    Signals(const Signals&) = delete;
    Signals& operator=(const Signals&) = delete;
    ~Signals();

    // Registers more memory if all words are in use; throws Error if that fails.
    Signal take();

  private:
    friend class Signal;
    struct Page;
    struct Word {
        std::atomic<std::uint32_t>* word = nullptr;
        Pointer on_device = 0;
        std::uint32_t last = 0;  // the value of its last signal
    };

    static void keep_for_ever(std::vector<std::unique_ptr<Page>> pages);
    void add_page();
    // `written`: whether the stream has written the value, or never will.
    void give_back(const Word& word, bool written);

    std::shared_ptr<const PrimaryContext> context_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Page>> pages_;
    std::vector<Word> free_;
    std::vector<Word> pending_;  // given to streams that have not written them, by signals that are gone
};

}  // namespace collectives::cuda
