// The board engine: short operations of ranks that all share memory, in which all ranks, or one rank, publish
// data once on a board, and each rank reads what it needs. See MessageBoard.
#pragma once

#include <vector>

#include "engine/engine.hpp"
#include "schedule/buffers.hpp"
#include "shm/board_entry.hpp"

namespace collectives {

class BoardTask final : public Task {
  public:
    explicit BoardTask(Colocated& colocated) : colocated_(colocated), entry_(colocated) {}

    void begin(Request& request, const Position& position) override;
    bool progress() override;
    bool complete() const override { return complete_; }
    void awaited(std::vector<Awaited>& result) override;
    void abandon() override { colocated_.abandon(*request_); }
    bool reclaim() override { return true; }
    void end() override;

    bool waits_for(PeerTest test) override;
    void set_asleep(bool asleep) override { entry_.set_asleep(asleep); }

  private:
    using Step = Operation::Task;

    const Operation& operation() const { return *request_->operation; }
    const Program& program() const { return request_->operation->program(); }
    MessageBoard& board() { return entry_.board(); }

    // Publish this rank's data; false if this has to wait.
    bool publish();
    std::size_t published_bytes() const { return static_cast<std::size_t>(operation().flat()->length); }
    const std::byte* published_by(int peer);
    void consume();
    void copy(const Step& step);
    void reduce(const Step& step);
    void reduce_operands(std::byte* dst, std::size_t n, double scale) const;
    bool has_everything();
    bool is_late(int peer);
    // The sources that may be late.
    std::span<const int> late_candidates() const;

    // --- sums for each core: the last rank of a core that arrives adds up the data of the core's ranks
    void publish_by_core();
    bool has_every_sum();
    void add_sums();

    Colocated& colocated_;
    BoardEntry entry_;
    Request* request_ = nullptr;
    Buffers buffers_;
    bool complete_ = false;
    bool published_ = false;
    bool by_core_ = false;
    bool has_all_ = false;       // all sources have published
    std::size_t sums_seen_ = 0;  // number of cores whose sums are there

    // Kept to save allocations.
    std::vector<const std::byte*> operands_;
    std::vector<int> late_;
};

// Whether the operation uses sums for each core, the same on all ranks.
bool adds_by_core(const Request& request, Colocated& colocated);

// Short operations, on the board of the root or of rank 0.
class BoardEngine final : public Engine {
  public:
    explicit BoardEngine(Colocated& colocated) : colocated_(colocated) {}
    const char* name() const override { return "board"; }
    const char* refuses(const Request& request) const override;
    std::unique_ptr<Task> make_task() override;

  private:
    Colocated& colocated_;
};

}  // namespace collectives
