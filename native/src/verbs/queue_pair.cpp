#include "verbs/queue_pair.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/error.hpp"
#include "verbs/library.hpp"
#include "verbs/tuning.hpp"

namespace collectives::verbs {

namespace {

constexpr std::uint32_t packet_mask = 0xffffff;  // packets have numbers of 24 bits
constexpr int completions_at_a_time = 16;
constexpr std::uint32_t segments_of_a_write = 2;

std::uint32_t random_packet() {
    std::uint32_t number = 0;
    if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) throw_system("getrandom", errno);
    return number & packet_mask;
}

}  // namespace

QueuePair::QueuePair(std::shared_ptr<Device> device, Port port, std::uint32_t sends, std::uint32_t receives)
    : device_(std::move(device)), port_(std::move(port)), sends_(sends), first_packet_(random_packet()) {
    const Library& calls = library();
    const auto check = [this](bool worked, const char* what) {
        if (worked) return;
        const int error = errno;
        destroy();
        throw Error(ErrorKind::transport_unavailable,
                    port_.name() + ": no " + what + " for a link: " + errno_text(error));
    };
    channel_ = calls.create_channel(device_->context());
    check(channel_ != nullptr, "completion channel");
    check(::fcntl(channel_->descriptor, F_SETFL, O_NONBLOCK) == 0, "completion channel that does not block");
    const int entries = static_cast<int>(sends + receives);
    completions_ = calls.create_completion_queue(device_->context(), entries, nullptr, channel_, 0);
    check(completions_ != nullptr, "completion queue");
    // Devices differ in how much they take inline, and say no more than that it is too much.
    for (std::uint32_t most = inline_wanted; pair_ == nullptr; most /= 4) {
        abi::QueuePairInit init;
        init.sends = completions_;
        init.receives = completions_;
        init.depths = {sends, receives, segments_of_a_write, 1, most};
        pair_ = calls.create_queue_pair(device_->domain(), &init);
        inline_up_to_ = init.depths.inline_bytes;
        check(pair_ != nullptr || most > 0, "queue pair");
    }
    try {
        abi::QueuePairAttributes attributes;
        attributes.state = abi::state_init;
        attributes.port = port_.number;
        attributes.access = abi::access_remote_write;
        modify(attributes, abi::with_state | abi::with_key_index | abi::with_port | abi::with_access,
               "it cannot be initialised");
        post_receives(receives);
        if (failure() != nullptr) throw Error(ErrorKind::transport_unavailable, failure_);
    } catch (...) {
        destroy();
        throw;
    }
}

QueuePair::~QueuePair() { destroy(); }

void QueuePair::end() {
    if (pair_ == nullptr) return;
    if (failure_.empty()) failure_ = port_.name() + " has ended its RDMA connection to " + peer_;
    library().destroy_queue_pair(pair_);
    pair_ = nullptr;
}

void QueuePair::destroy() {
    const Library& calls = library();
    if (pair_ != nullptr) calls.destroy_queue_pair(pair_);
    if (completions_ != nullptr) {
        if (events_ > 0) calls.ack_events(completions_, events_);
        calls.destroy_completion_queue(completions_);
    }
    if (channel_ != nullptr) calls.destroy_channel(channel_);
    pair_ = nullptr;
    completions_ = nullptr;
    channel_ = nullptr;
}

void QueuePair::modify(abi::QueuePairAttributes& attributes, int mask, const std::string& what) {
    const int error = library().modify_queue_pair(pair_, &attributes, mask);
    if (error == 0) return;
    throw Error(ErrorKind::transport_unavailable, "RDMA connection of " + port_.name() + " (" +
                                                      text(port_.gid) + "): " + what + ": " +
                                                      errno_text(error));
}

void QueuePair::connect(const Endpoint& theirs, const std::string& peer, const Settings& settings) {
    peer_ = theirs.port_name() + " of " + peer;
    abi::QueuePairAttributes attributes;
    attributes.state = abi::state_ready_to_receive;
    // Longer writes than the path carries would complete nowhere, without an error.
    attributes.path_mtu = std::min<std::uint32_t>(port_.mtu, theirs.mtu);
    attributes.destination = theirs.queue_pair;
    attributes.receive_psn = theirs.first_packet;
    attributes.max_reads_of_peer = 1;
    attributes.min_rnr_timer = min_rnr_timer;
    abi::Path& path = attributes.path;
    path.port = port_.number;
    path.lid = theirs.lid;
    // Links of Ethernet need the global route, those of InfiniBand only between subnets.
    const bool same_subnet = std::equal(port_.gid.begin(), port_.gid.begin() + 8, theirs.gid.begin());
    if (port_.layer == abi::layer_ethernet || !same_subnet) {
        path.is_global = 1;
        path.destination = theirs.gid;
        path.source_index = static_cast<std::uint8_t>(port_.gid_index);
        path.hop_limit = hop_limit;
    }
    modify(attributes,
           abi::with_state | abi::with_path | abi::with_path_mtu | abi::with_destination |
               abi::with_receive_psn | abi::with_max_reads_of_peer | abi::with_min_rnr_timer,
           "there is no path to " + peer_ + " (" + text(theirs.gid) +
               "); check that one address reaches the other, or choose the port by COLLECTIVES_VERBS_DEVICE");
    attributes = {};
    attributes.state = abi::state_ready_to_send;
    attributes.timeout = settings.ack_timeout;
    attributes.retries = settings.retries;
    attributes.rnr_retries = settings.rnr_retries;
    attributes.send_psn = first_packet_;
    attributes.max_reads = 1;
    modify(attributes,
           abi::with_state | abi::with_timeout | abi::with_retries | abi::with_rnr_retries |
               abi::with_send_psn | abi::with_max_reads,
           "it cannot be made ready to send");
}

void QueuePair::post_receives(std::uint32_t n) {
    // They take no bytes, so all of them are alike, and need no memory.
    std::array<abi::ReceiveRequest, receives_at_a_time> requests{};
    while (n > 0 && failure() == nullptr) {
        const std::uint32_t some = std::min<std::uint32_t>(n, requests.size());
        for (std::uint32_t i = 0; i < some; ++i) requests[i].next = i + 1 < some ? &requests[i + 1] : nullptr;
        abi::ReceiveRequest* refused = nullptr;
        const int error = pair_->context->table.post_receive(pair_, requests.data(), &refused);
        if (error != 0) failure_ = port_.name() + " refused a receive: " + errno_text(error);
        n -= some;
    }
}

std::uint32_t QueuePair::repost() {
    if (used_receives_ < receives_at_a_time) return 0;
    post_receives(used_receives_);
    return std::exchange(used_receives_, 0);
}

void QueuePair::post(const Write& write) {
    std::array<abi::Segment, segments_of_a_write> from = write.from;
    std::size_t bytes = 0;
    for (const abi::Segment& segment : from) bytes += segment.length;
    const bool is_signalled = write.is_signalled || posted_ + 1 - signalled_ >= signal_every;
    abi::SendRequest request;
    request.id = posted_ + 1;
    request.segments = from.data();
    request.n_segments = write.segments;
    request.opcode = write.is_silent ? abi::rdma_write : abi::rdma_write_with_immediate;
    request.flags = (is_signalled ? abi::send_signalled : 0U) |
                    (bytes > 0 && bytes <= inline_up_to_ ? abi::send_inline : 0U);
    request.immediate = htonl(write.immediate);
    request.remote_address = write.address;
    request.remote_key = write.key;
    abi::SendRequest* refused = nullptr;
    const int error = pair_->context->table.post_send(pair_, &request, &refused);
    if (error != 0) {
        if (failure_.empty()) failure_ = port_.name() + " refused a work request: " + errno_text(error);
        return;
    }
    ++posted_;
    if (is_signalled) signalled_ = posted_;
}

bool QueuePair::poll(FunctionRef<void(std::uint32_t immediate, std::uint32_t bytes)> arrived) {
    std::array<abi::Completion, completions_at_a_time> found;
    bool any = false;
    int n = completions_at_a_time;
    while (n == completions_at_a_time) {
        n = completions_->context->table.poll(completions_, completions_at_a_time, found.data());
        if (n < 0 && failure_.empty())
            failure_ = "the completion queue of " + port_.name() + " cannot be read";
        for (int i = 0; i < n; ++i) {
            const abi::Completion& completion = found[static_cast<std::size_t>(i)];
            any = true;
            ++taken_up_;
            if (completion.status != abi::status_success) {
                fail(completion);
            } else if ((completion.opcode & abi::completed_receive) != 0) {
                ++used_receives_;
                arrived(ntohl(completion.immediate), completion.length);
            } else {
                completed_ = std::max(completed_, completion.id);
            }
        }
    }
    return any;
}

void QueuePair::fail(const abi::Completion& completion) {
    // What comes first tells the cause; all other requests are flushed, in an order that differs.
    const bool is_cause = completion.status != abi::status_flushed;
    if (has_cause_ || (!is_cause && !failure_.empty())) return;
    has_cause_ = is_cause;
    failure_ = port_.name() + " has lost its RDMA connection to " + peer_ + ": ";
    const bool is_down = device_->is_down(port_.number);
    if (completion.status == abi::status_retries) {
        failure_ += "nothing was acknowledged for seconds";
        if (!is_down) failure_ += " (the process ended, a link is down, or packets are lost)";
    } else {
        failure_ += std::string(library().status_text(completion.status)) + " (status " +
                    std::to_string(completion.status) + ")";
    }
    if (is_down) failure_ += "; this port is down: check the cable and the network interface";
}

void QueuePair::arm() {
    const Library& calls = library();
    abi::CompletionQueue* queue = nullptr;
    void* unused = nullptr;
    while (calls.get_event(channel_, &queue, &unused) == 0) {
        armed_ = false;
        ++events_;
    }
    constexpr std::uint32_t acknowledged_at_a_time = 64;  // it takes a mutex
    if (events_ >= acknowledged_at_a_time) calls.ack_events(completions_, std::exchange(events_, 0));
    if (armed_) return;
    if (completions_->context->table.request_notification(completions_, 0) != 0 && failure_.empty()) {
        failure_ = "the completion queue of " + port_.name() + " gives no events";
    }
    armed_ = true;
}

}  // namespace collectives::verbs
