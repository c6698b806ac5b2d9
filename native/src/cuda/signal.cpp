#include "cuda/signal.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/error.hpp"
#include "cuda/stream.hpp"

namespace collectives::cuda {

namespace {
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t words_in_page = page_bytes / sizeof(std::uint32_t);
}  // namespace

struct Signals::Page {
    Page() : data(::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        if (data == MAP_FAILED) throw_system("mmap", errno);
        // A child process that is forked must not get a copy in which the device does not write.
        ::madvise(data, page_bytes, MADV_DONTFORK);
    }
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;
    ~Page() {
        memory.reset();
        ::munmap(data, page_bytes);
    }

    void* data;
    std::unique_ptr<RegisteredMemory> memory;
};

Signal::Signal(Signal&& other) noexcept
    : owner_(std::move(other.owner_)),
      word_(other.word_),
      on_device_(other.on_device_),
      value_(other.value_),
      given_(other.given_) {}

Signal::~Signal() {
    if (owner_) owner_->give_back({word_, on_device_, value_}, !given_ || is_set());
}

void Signal::set_by(StreamHandle stream) {
    given_ = true;
    try {
        write_value(stream, on_device_, value_);
    } catch (...) {
        given_ = false;
        throw;
    }
}

Signals::Signals(std::shared_ptr<const PrimaryContext> context) : context_(std::move(context)) {}

Signals::~Signals() {
    const bool all_written = std::ranges::all_of(
        pending_, [](const Word& word) { return word.word->load(std::memory_order_acquire) == word.last; });
    if (!all_written) keep_for_ever(std::move(pages_));
}

// A write to memory that is gone would make the device unusable for this process.
void Signals::keep_for_ever(std::vector<std::unique_ptr<Page>> pages) {
    static std::mutex mutex;
    static auto& kept = *new std::vector<std::unique_ptr<Page>>();
    const std::lock_guard lock(mutex);
    std::ranges::move(pages, std::back_inserter(kept));
}

void Signals::add_page() {
    auto page = std::make_unique<Page>();
    page->memory = std::make_unique<RegisteredMemory>(context_, page->data, page_bytes);
    auto* const words = static_cast<std::atomic<std::uint32_t>*>(page->data);
    for (std::size_t i = words_in_page; i-- > 0;) {
        free_.push_back({words + i, page->memory->on_device() + i * sizeof(std::uint32_t), 0});
    }
    pages_.push_back(std::move(page));
}

Signal Signals::take() {
    const std::lock_guard lock(mutex_);
    std::erase_if(pending_, [&](const Word& word) {
        if (word.word->load(std::memory_order_acquire) != word.last) return false;
        free_.push_back(word);
        return true;
    });
    if (free_.empty()) add_page();
    const Word word = free_.back();
    free_.pop_back();
    return {shared_from_this(), word.word, word.on_device, word.last + 1};
}

void Signals::give_back(const Word& word, bool written) {
    const std::lock_guard lock(mutex_);
    if (written) {
        free_.push_back(word);
    } else {
        pending_.push_back(word);
    }
}

}  // namespace collectives::cuda
