// Tasks for operations that code outside of the core runs, see engine/generalized.hpp. Ranks first check that
// they make the same call, by a barrier over the links with the fingerprint of this call; then the task waits
// until that code reports the end.
//
// Invariant: the operation works on memory that the core does not know, so no other operation runs meanwhile.
#pragma once

#include <optional>
#include <vector>

#include "base/wait.hpp"
#include "engine/generalized.hpp"
#include "schedule/schedule_task.hpp"

namespace collectives {

class GeneralizedTask final : public Task {
  public:
    explicit GeneralizedTask(const ScheduleSettings& settings) : agreement_(settings) {}

    void begin(Request& request, const Position& position) override;
    bool progress() override;
    bool complete() const override { return is_over_; }
    void awaited(std::vector<Awaited>& result) override;
    void abandon() override;
    bool reclaim() override;
    void end() override { agreement_.end(); }

    std::chrono::nanoseconds grace() const override;
    bool depends_on_all() const override { return agreement_.depends_on_all(); }
    Channels* channels() override { return agreement_.channels(); }

  private:
    // Throws if a rank is gone, and has been for longer than other ranks need to end the operation.
    void look_for_losses();

    ScheduleTask agreement_;
    const Request* request_ = nullptr;
    std::optional<Clock::time_point> lost_since_;  // when some rank was found to be gone
    bool has_begun_ = false;
    bool is_over_ = false;
};

class GeneralizedEngine final : public Engine {
  public:
    explicit GeneralizedEngine(const Surroundings& surroundings) : settings_(settings_for(surroundings)) {}
    const char* name() const override { return "generalized"; }
    const char* refuses(const Request& request) const override {
        return request.generalized == nullptr ? "no engine of another package runs it" : nullptr;
    }
    std::unique_ptr<Task> make_task() override { return std::make_unique<GeneralizedTask>(settings_); }

  private:
    ScheduleSettings settings_;
};

}  // namespace collectives
