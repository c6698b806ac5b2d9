#include "core/warnings.hpp"

#include <atomic>
#include <mutex>
#include <utility>

namespace collectives::warnings {

namespace {

constexpr std::size_t most_kept = 100;

struct Kept {
    std::mutex mutex;
    std::vector<std::string> texts;
    std::atomic<bool> some{false};
};

Kept& kept() {
    static Kept instance;
    return instance;
}

}  // namespace

void add(std::string text) {
    const std::lock_guard lock(kept().mutex);
    if (kept().texts.size() >= most_kept) return;
    kept().texts.push_back(std::move(text));
    kept().some.store(true, std::memory_order_relaxed);
}

std::vector<std::string> take() {
    if (!kept().some.load(std::memory_order_relaxed)) return {};
    const std::lock_guard lock(kept().mutex);
    kept().some.store(false, std::memory_order_relaxed);
    return std::exchange(kept().texts, {});
}

}  // namespace collectives::warnings
