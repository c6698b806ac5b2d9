// The engine for ranks that share a device, or whose devices reach each other: one rank, the leader, reads
// the inputs of all and writes their outputs.
//
// Invariant: a call puts waits and writes of control words into the caller's stream and returns. Nothing on
// the device waits by spinning, and no event of another process is ever put into a stream. A rank that gives
// up frees its own streams, and its outputs are not written any more: the kernel looks at its epoch before
// each tile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/heap.hpp"
#include "cuda/signal.hpp"
#include "cuda/stream.hpp"
#include "engine/stream_engine.hpp"
#include "leader/control.hpp"
#include "leader/exports.hpp"
#include "leader/launcher.hpp"

namespace collectives::leader {

// What a rank tells the others before they meet. Plain bytes, sent over an authenticated exchange.
struct Record {
    Token process{};  // the same for ranks of one process
    Token meeting{};  // of the leader
    cuda::Exported control;
};

class Communicator final : public StreamEngine {
  public:
    struct Member {
        int rank = 0;
        int size = 1;
        int device = 0;
    };

    // `compiler`: the path of NVRTC, which the leader, rank 0, needs. Throws Error.
    Communicator(const Member& member, std::string compiler);
    ~Communicator() override;

    const Record& record() const { return record_; }
    // Meet the other ranks, whose records these are, by rank. Throws Error if that is impossible on this
    // rank; then the object is only to be destroyed.
    void meet(const std::vector<Record>& everyone, const Patience& patience);

    const char* name() const override { return "leader"; }
    std::optional<std::string> failure() override;
    void abort() noexcept override;
    void close() noexcept override;

    const Member& member() const { return member_; }
    const std::shared_ptr<const cuda::PrimaryContext>& context() const { return context_; }
    // Of the device's memory: control words, and what graphs use. On any thread.
    std::size_t own_bytes() const { return own_bytes_; }

    // --- for operations, on the thread that issues them, one at a time

    // Held while a call is issued: `abort` waits for it. Throws Error(aborted) after an abort.
    class Use {
      public:
        explicit Use(Communicator& communicator);
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        ~Use();

      private:
        Communicator& communicator_;
    };
    struct Call {
        std::uint64_t number = 0;
        std::uint32_t captured = 0;  // its number among the captured ones, from 1 on; 0 if it is not captured
    };
    Place place_of(cuda::Pointer address, std::size_t bytes) {
        return exports_->place_of(address, bytes, *meeting_);
    }
    // Number a call and tell the leader about it. Waits while the leader has not taken a call of long ago.
    Call publish(Description description, const Place& in, const Place& out, bool is_captured);
    // What is put into the stream from now on begins when the outputs of the call are complete, which begins
    // when all ranks' streams have come so far.
    void pass(const Call& call, cuda::StreamHandle stream);
    // A signal that the stream sets behind all that is in it; `abort` waits for it.
    std::shared_ptr<cuda::Signal> signal_behind(cuda::StreamHandle stream);
    // On the leader: compile the kernels that move elements, and those that reduce them so. Throws Error.
    void compile(DType dtype, Op op);
    // Memory that graphs use.
    void keep(std::shared_ptr<const cuda::Block> block) {
        own_bytes_ += block->bytes();
        kept_.push_back(std::move(block));
    }
    bool can_capture() const { return captured_ < most_captured; }

  private:
    bool is_leader() const { return member_.rank == 0; }
    // Let this rank's device use memory of that device, which another rank of this process has. Throws Error.
    void reach(int device);
    void pass_captured(const Call& call, cuda::StreamHandle stream);
    void check_alive() const;
    // Free this rank's streams, and let the leader's stream go on. Throws Error if the context is lost.
    void free_streams();
    // Let all go that is not needed any more. `is_drained`: no stream of this rank uses memory of others.
    void end(bool is_drained) noexcept;

    Member member_;
    std::string compiler_;
    std::shared_ptr<const cuda::PrimaryContext> context_;
    std::vector<std::shared_ptr<const cuda::PrimaryContext>> reached_;  // of other devices
    std::shared_ptr<cuda::Signals> signals_;
    std::shared_ptr<const cuda::Block> control_;
    std::optional<cuda::OwnStream> own_;  // in which `abort` writes
    std::optional<cuda::Signal> begun_;   // set when the control words have their first values
    Record record_;
    std::optional<Meeting> meeting_;
    std::vector<std::unique_ptr<cuda::Imported>> mapped_;  // control words of others
    std::vector<cuda::Pointer> words_;  // where they are: of the leader all, by rank; of others the leader's
    std::unique_ptr<Board> board_;
    std::optional<Exports> exports_;
    std::unique_ptr<Launcher> launcher_;  // of the leader

    std::atomic<std::uint64_t> issued_{0};
    std::atomic<std::uint32_t> captured_{0};
    std::atomic<bool> ending_{false};
    std::atomic<std::size_t> own_bytes_{0};

    std::vector<std::shared_ptr<const cuda::Block>> kept_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::shared_ptr<cuda::Signal>> pending_;  // of calls that may not be complete
    int inside_ = 0;
    bool is_over_ = false;  // nothing of it runs on the device any more
};

}  // namespace collectives::leader
