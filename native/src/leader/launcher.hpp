// The thread of the leader that puts the kernels of all calls into a stream of its own.
//
// Invariant: calls are taken in their order, each when all ranks have made it. So no rank's call waits on the
// host for another rank, and memory is mapped outside of all calls. The first error ends the thread; nothing
// is launched after it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/kernels.hpp"
#include "cuda/signal.hpp"
#include "cuda/stream.hpp"
#include "leader/board.hpp"
#include "leader/imports.hpp"

namespace collectives::leader {

// A kernel that is ready to be put into a stream; without a function there is nothing to do.
struct Launch {
    cuda::FunctionHandle function = nullptr;
    cuda::Grid grid;
    cuda::KernelArguments arguments{};
};

class Launcher {
  public:
    // `control`: the blocks of control words of all ranks, as this process has them.
    Launcher(std::shared_ptr<const cuda::PrimaryContext> context, int size, const std::string& compiler,
             const Board& board, Meeting& meeting, std::vector<cuda::Pointer> control);
    Launcher(const Launcher&) = delete;
    Launcher& operator=(const Launcher&) = delete;
    ~Launcher();

    // The kernel of a captured call, once all ranks have made the call. Throws Error(aborted) after `stop`.
    Launch captured(std::uint64_t number);

    // Compile the kernels that move elements, and those that reduce them so, before a call needs them. Throws
    // Error.
    void compile(DType dtype, Op op);

    // Why the thread has ended by itself.
    std::optional<std::string> failure();
    // End the thread. It does not wait for the device, but a call of the driver may.
    void stop();
    // After `stop`: set when the stream has done all that is in it.
    cuda::Signal mark(const std::shared_ptr<cuda::Signals>& signals);

  private:
    void serve();
    // False if the thread is to end.
    bool wait_for_all(std::uint64_t number);
    // Sleep until something has changed; throws Error(aborted) if the thread is to end.
    void rest();
    Launch prepare(std::uint64_t number);
    void launch(std::uint64_t number, const Launch& launch);
    void trim_if_idle();

    std::shared_ptr<const cuda::PrimaryContext> context_;
    int size_;
    const Board& board_;
    std::vector<cuda::Pointer> control_;
    Imports imports_;
    std::mutex compiling_;  // protects `kernels_`
    cuda::Kernels kernels_;
    std::shared_ptr<cuda::Signals> signals_;
    std::optional<cuda::Signal> last_;  // of the last call that was launched
    cuda::OwnStream stream_;
    std::uint64_t next_ = 1;
    std::atomic<bool> stop_{false};

    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<std::string> failure_;
    std::map<std::uint64_t, Launch> captured_;
    bool ended_ = false;
    std::thread thread_;  // after all that it uses
};

}  // namespace collectives::leader
