#include "verbs/link.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

namespace {

constexpr std::uint32_t all_receives = record_slots + reports_under_way + receives_at_a_time;
// A rank that waits for a peer, and neither hears from it nor has anything under way to it, probes the path
// after this time.
constexpr std::chrono::seconds probes_after{1};
constexpr const char* closed = "it closed the communicator";

}  // namespace

OwnEnd::OwnEnd(const std::shared_ptr<Device>& device, const Port& port, const Settings& chosen)
    : settings(chosen),
      ring(std::make_unique<Registered>(device, ring_bytes + grants_bytes(record_slots), true)),
      queue(std::make_unique<QueuePair>(device, port, send_depth, all_receives)) {}

std::size_t registered_bytes() { return 2 * (ring_bytes + grants_bytes(record_slots)); }

Endpoint OwnEnd::describe() const {
    Endpoint end = verbs::describe(queue->port());
    end.queue_pair = queue->number();
    end.first_packet = queue->first_packet();
    end.ring_address = ring->address();
    end.ring_units = units(ring_bytes);
    end.direct_from = settings.direct_from;
    end.ring_key = ring->remote_key();
    end.slots = record_slots;
    return end;
}

VerbsLink::VerbsLink(Peer peer, int rank, std::unique_ptr<OwnEnd> own, const Endpoint& theirs,
                     UniqueFd socket, GivingUp& giving_up, const Pieces& pieces)
    : Link(std::move(peer)),
      rank_(rank),
      own_(std::move(own)),
      regions_(Regions::of(own_->queue->device())),
      ring_address_(theirs.ring_address),
      ring_bytes_(static_cast<std::size_t>(theirs.ring_units) * unit_bytes),
      ring_key_(theirs.ring_key),
      slots_(theirs.slots),
      pieces_(pieces),
      path_(own_->queue->port().name() + " to " + theirs.port_name()),
      ended_("its process ended or closed the communicator (" + path_ + ")"),
      buffer_(own_->queue->device(), ring_bytes_ + grants_bytes(slots_), false),
      side_(std::move(socket)),
      giving_up_(giving_up),
      out_(theirs.ring_units, theirs.slots),
      asks_from_(theirs.direct_from),
      in_(units(ring_bytes), record_slots),
      sizes_(in_.size()) {
    const std::size_t longest = own_->queue->port().longest_message;
    pieces_.straight = std::min(pieces_.straight, longest);
    pieces_.of_record = std::min(pieces_.of_record, longest - sizeof(RecordHead));
    own_->queue->connect(theirs, this->peer().name(), own_->settings);
    side_.say_ready();
    count_inbox(ring_bytes);
}

bool VerbsLink::progress() {
    if (!side_.is_ready()) side_.look();
    const bool any = own_->queue->poll(
        [this](std::uint32_t immediate, std::uint32_t bytes) { take_up(immediate, bytes); });
    if (any && own_->queue->repost() > 0) in_.repost(std::exchange(slots_used_, 0));
    report();  // also if nothing has come: an earlier one may have found no place
    return any;
}

void VerbsLink::take_up(std::uint32_t immediate, std::uint32_t bytes) {
    const Immediate said = Immediate::decode(immediate);
    bool is_possible = out_.credit(said);
    switch (said.carried) {
        case Carried::credits:
            break;
        case Carried::record:
            is_possible = is_possible && bytes >= sizeof(RecordHead) && in_.arrive(bytes);
            if (is_possible) sizes_[(in_.records() - 1) % sizes_.size()] = bytes;
            break;
        case Carried::piece:
            in_.arrive();
            is_possible = is_possible && bytes > 0 && bytes <= granted_end_ - straight_;
            if (is_possible) straight_ += bytes;
            break;
        case Carried::grant:
            in_.arrive();
            is_possible = is_possible && take_grant(bytes);
            break;
    }
    if (said.carried != Carried::credits) ++slots_used_;
    if (!is_possible && problem_.empty()) {
        problem_ = "it returned credits that it did not have, or sent more than it was allowed to";
    }
}

void VerbsLink::post(Write& write, Carried carried) {
    write.immediate = in_.tell(carried).encode();
    own_->queue->post(write);
    counters_.requests.add(1);
}

void VerbsLink::report() {
    if (!in_.is_due() || side_.has_ended() || !can_send()) return;
    Write nothing;
    post(nothing, Carried::credits);
    counters_.reports.add(1);
}

void VerbsLink::probe() {
    const auto now = Clock::now();
    const bool is_new = now - std::exchange(asked_at_, now) > probes_after;  // the wait
    if (std::exchange(heard_, own_->queue->taken_up()) != own_->queue->taken_up() || is_new) heard_at_ = now;
    if (now - heard_at_ < probes_after || !own_->queue->is_flushed() || !can_send()) return;
    Write nothing;
    nothing.address = ring_address_;
    nothing.key = ring_key_;
    nothing.is_signalled = true;
    nothing.is_silent = true;
    own_->queue->post(nothing);
    counters_.probes.add(1);
    heard_at_ = now;
}

// --- waiting, and the end

bool VerbsLink::arm(bool /*sending*/, std::vector<pollfd>& polled) {
    own_->queue->arm();
    if (side_.look() || progress()) return true;
    polled.push_back({own_->queue->descriptor(), POLLIN, 0});
    if (!side_.has_ended()) polled.push_back({side_.descriptor(), POLLIN | POLLRDHUP, 0});
    return false;
}

const char* VerbsLink::lost() {
    side_.look();
    progress();
    if (!problem_.empty()) return problem_.c_str();
    // First, since what is sent to a peer that has closed fails, too.
    if (side_.goodbye() && in_.arrived() >= side_.goodbye()->sent) return closed;
    if (const char* const failure = own_->queue->failure()) return failure;
    if (!side_.has_ended()) {
        probe();
        return nullptr;
    }
    if (!side_.goodbye()) return ended_.c_str();
    // What it sent before it closed may still be on its way.
    constexpr std::chrono::seconds on_its_way{1};
    if (!ended_at_) ended_at_ = Clock::now();
    return Clock::now() - *ended_at_ > on_its_way ? closed : nullptr;
}

void VerbsLink::shut_down(std::optional<int> lost) {
    if (std::exchange(is_silent_, true)) return;
    side_.say_goodbye(out_.sent(), lost == peer().rank ? std::nullopt : lost);
}

std::optional<int> VerbsLink::blamed() const {
    if (!side_.goodbye() || side_.goodbye()->lost < 0 || side_.goodbye()->lost == rank_) return std::nullopt;
    return side_.goodbye()->lost;
}

void VerbsLink::flush(const Deadline& deadline) {
    progress();  // also if the deadline has passed
    while (!own_->queue->is_flushed() && own_->queue->failure() == nullptr && !side_.has_ended() &&
           !deadline.passed()) {
        side_.look();
        if (!progress()) ::sched_yield();
    }
}

bool VerbsLink::quiesce() {
    // The device may still write to the caller's memory, or read from it.
    const auto is_reached = [this] { return granted_end_ > straight_ || (source_ && released() < written_); };
    if (is_reached()) {
        // The peer may still need what earlier operations have sent.
        constexpr double soon = 0.3;
        if (!giving_up_.deadline) giving_up_.deadline = Deadline(soon);
        flush(*giving_up_.deadline);
        if (is_reached()) own_->queue->end();
    }
    in_use_.clear();
    source_.reset();
    destination_.reset();
    return true;
}

VerbsLink::~VerbsLink() {
    // A queue pair that is destroyed sends nothing more, also not what a call has already reported as sent.
    constexpr double enough = 1.0;
    flush(Deadline(enough));
    own_.reset();  // before the buffer and the regions, which it may still be sending
}

// --- what was done

Posted VerbsLink::posted() const {
    return {.requests = counters_.requests.get(),
            .payload = counters_.payload.get(),
            .straight = counters_.straight.get(),
            .reports = counters_.reports.get(),
            .grants = counters_.grants.get(),
            .probes = counters_.probes.get(),
            .copied = counters_.copied.get()};
}

std::vector<LinkCount> VerbsLink::counts() const {
    const Posted all = posted();
    const Regions::Use use = regions_->use();
    return {{"work_requests", all.requests}, {"payload", all.payload},
            {"straight", all.straight},      {"credit_requests", all.reports},
            {"grant_requests", all.grants},  {"probes", all.probes},
            {"copied", all.copied},          {"regions_made", use.made},
            {"regions_reused", use.reused},  {"regions_refused", use.refused},
            {"regions_kept", use.kept},      {"regions_kept_bytes", use.kept_bytes}};
}

}  // namespace collectives::verbs
