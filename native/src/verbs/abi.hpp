// The binary interface of libibverbs.so.1, as far as links use it: what rdma-core keeps the same for all
// programs that were ever linked to it.
//
// Declared here because the library is loaded at run time, so that building needs no headers of rdma-core. No
// function for the data path is exported: those of <infiniband/verbs.h> are inline, and call the driver
// through a table in the context, which is declared here as well. Invariant: sizes, offsets and codes are
// those of the header (tests/native/verbs/test_abi.cpp compares them where it is installed). Objects are made
// and freed by the library alone; of those that are longer, only the first members are declared.
#pragma once

#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace collectives::verbs::abi {

struct Device;
struct Domain;  // protection domain
struct SharedReceives;
struct CompletionQueue;
struct QueuePair;

using Gid = std::array<std::uint8_t, 16>;

enum GidType : std::uint32_t { gid_ib = 0, gid_roce_v1 = 1, gid_roce_v2 = 2 };

struct GidEntry {
    alignas(8) Gid gid{};
    std::uint32_t index = 0;
    std::uint32_t port = 0;
    std::uint32_t type = 0;
    std::uint32_t interface = 0;
};

enum PortState : std::uint32_t { port_down = 1, port_initialized = 2, port_armed = 3, port_active = 4 };
enum LinkLayer : std::uint8_t { layer_unspecified = 0, layer_infiniband = 1, layer_ethernet = 2 };

struct PortAttributes {
    std::uint32_t state = 0;
    std::uint32_t max_mtu = 0;
    std::uint32_t active_mtu = 0;  // 1: 256 bytes, … 5: 4096 bytes
    std::int32_t n_gids = 0;
    std::uint32_t capabilities = 0;
    std::uint32_t max_message = 0;
    std::uint32_t bad_keys = 0;
    std::uint32_t key_violations = 0;
    std::uint16_t n_keys = 0;
    std::uint16_t lid = 0;
    std::uint16_t sm_lid = 0;
    std::uint8_t lmc = 0;
    std::uint8_t max_lanes = 0;
    std::uint8_t sm_sl = 0;
    std::uint8_t subnet_timeout = 0;
    std::uint8_t init_type_reply = 0;
    std::uint8_t active_width = 0;
    std::uint8_t active_speed = 0;
    std::uint8_t physical_state = 0;
    std::uint8_t link_layer = 0;
    std::uint8_t flags = 0;
    std::uint16_t more_capabilities = 0;
    std::array<std::uint64_t, 4> later{};  // room for what newer versions add
};

struct DeviceAttributes {
    std::array<char, 64> firmware{};
    std::uint64_t node_guid = 0;
    std::uint64_t system_guid = 0;
    std::uint64_t max_region = 0;
    std::uint64_t page_sizes = 0;
    std::array<std::uint32_t, 3> vendor{};
    std::int32_t max_queue_pairs = 0;
    std::int32_t max_requests = 0;
    std::uint32_t capabilities = 0;
    std::int32_t max_sge = 0;
    std::int32_t max_sge_of_reads = 0;
    std::int32_t max_completion_queues = 0;
    std::int32_t max_completions = 0;
    std::array<std::int32_t, 22> others{};
    std::uint16_t max_keys = 0;
    std::uint8_t ack_delay = 0;
    std::uint8_t n_ports = 0;
};

struct Region {
    void* context = nullptr;
    Domain* domain = nullptr;
    void* address = nullptr;
    std::size_t length = 0;
    std::uint32_t handle = 0;
    std::uint32_t local_key = 0;
    std::uint32_t remote_key = 0;
};

enum ForkStatus : std::int32_t { fork_disabled = 0, fork_enabled = 1, fork_unneeded = 2 };

enum Access : int { access_local_write = 1, access_remote_write = 2, access_on_demand = 64 };

struct Channel {
    void* context = nullptr;
    int descriptor = -1;
    int references = 0;
};

// --- work requests and their completions

struct Segment {
    std::uint64_t address = 0;
    std::uint32_t length = 0;
    std::uint32_t local_key = 0;
};

enum Opcode : std::uint32_t { rdma_write = 0, rdma_write_with_immediate = 1 };
enum SendFlags : std::uint32_t { send_signalled = 2, send_inline = 8 };

struct SendRequest {
    std::uint64_t id = 0;
    SendRequest* next = nullptr;
    Segment* segments = nullptr;
    std::int32_t n_segments = 0;
    std::uint32_t opcode = 0;
    std::uint32_t flags = 0;
    std::uint32_t immediate = 0;  // in network byte order
    std::uint64_t remote_address = 0;
    std::uint32_t remote_key = 0;
    std::array<std::uint64_t, 9> others{};
};

struct ReceiveRequest {
    std::uint64_t id = 0;
    ReceiveRequest* next = nullptr;
    Segment* segments = nullptr;
    std::int32_t n_segments = 0;
};

enum Status : std::uint32_t {
    status_success = 0,
    status_flushed = 5,
    status_remote_access = 10,
    status_retries = 12
};
enum CompletionOpcode : std::uint32_t { completed_write = 1, completed_receive = 128 };

struct Completion {
    std::uint64_t id = 0;
    std::uint32_t status = 0;
    std::uint32_t opcode = 0;
    std::uint32_t vendor_error = 0;
    std::uint32_t length = 0;
    std::uint32_t immediate = 0;  // in network byte order
    std::uint32_t queue_pair = 0;
    std::uint32_t source = 0;
    std::uint32_t flags = 0;
    std::uint16_t key_index = 0;
    std::uint16_t source_lid = 0;
    std::uint8_t service_level = 0;
    std::uint8_t path_bits = 0;
};

// --- the driver's functions

using Unused = void (*)();

struct Table {
    std::array<Unused, 11> before_poll{};
    int (*poll)(CompletionQueue*, int, Completion*) = nullptr;
    int (*request_notification)(CompletionQueue*, int) = nullptr;
    std::array<Unused, 12> before_send{};
    int (*post_send)(QueuePair*, SendRequest*, SendRequest**) = nullptr;
    int (*post_receive)(QueuePair*, ReceiveRequest*, ReceiveRequest**) = nullptr;
    std::array<Unused, 5> others{};
};

struct Context {
    Device* device = nullptr;
    Table table;
    std::array<std::int32_t, 3> numbers{};
    alignas(pthread_mutex_t) std::array<std::byte, sizeof(pthread_mutex_t)> mutex{};
    std::uintptr_t extended = 0;  // `is_extended` if the context is the end of an ExtendedContext
};
inline constexpr std::uintptr_t is_extended = ~std::uintptr_t{0};

// On-demand paging, by what is paged and by kind of connection.
enum OnDemand : std::uint32_t { on_demand_supported = 1, on_demand_write = 4 };

struct ExtendedAttributes {
    DeviceAttributes attributes;
    std::uint32_t mask = 0;
    alignas(8) std::uint64_t on_demand = 0;
    std::uint32_t on_demand_reliable = 0;
    std::array<std::uint32_t, 2> on_demand_others{};
    std::array<std::uint64_t, 64> later{};
};

// The end of what libibverbs allocates for a context. Newer versions put further members in front.
struct ExtendedContext {
    int (*query_device)(Context*, const void*, ExtendedAttributes*, std::size_t) = nullptr;
    std::array<Unused, 10> others{};
    std::uint64_t placeholder = 0;
    std::size_t size = 0;  // of the whole
    Context context;
};

struct CompletionQueue {
    Context* context = nullptr;
};

// --- queue pairs

struct QueuePair {
    Context* context = nullptr;
    void* user_context = nullptr;
    Domain* domain = nullptr;
    CompletionQueue* sends = nullptr;
    CompletionQueue* receives = nullptr;
    SharedReceives* shared = nullptr;
    std::uint32_t handle = 0;
    std::uint32_t number = 0;
};

struct Depths {
    std::uint32_t sends = 0;
    std::uint32_t receives = 0;
    std::uint32_t send_segments = 0;
    std::uint32_t receive_segments = 0;
    std::uint32_t inline_bytes = 0;
};

enum QueuePairType : std::uint32_t { reliable_connection = 2 };

struct QueuePairInit {
    void* user_context = nullptr;
    CompletionQueue* sends = nullptr;
    CompletionQueue* receives = nullptr;
    SharedReceives* shared = nullptr;
    Depths depths;
    std::uint32_t type = reliable_connection;
    std::int32_t signal_all = 0;
};

enum QueuePairState : std::uint32_t { state_init = 1, state_ready_to_receive = 2, state_ready_to_send = 3 };

struct Path {
    alignas(8) Gid destination{};
    std::uint32_t flow_label = 0;
    std::uint8_t source_index = 0;
    std::uint8_t hop_limit = 0;
    std::uint8_t traffic_class = 0;
    std::uint8_t unused = 0;
    std::uint16_t lid = 0;
    std::uint8_t service_level = 0;
    std::uint8_t source_path_bits = 0;
    std::uint8_t static_rate = 0;
    std::uint8_t is_global = 0;
    std::uint8_t port = 0;
};

struct QueuePairAttributes {
    std::uint32_t state = 0;
    std::uint32_t current_state = 0;
    std::uint32_t path_mtu = 0;
    std::uint32_t migration = 0;
    std::uint32_t key = 0;
    std::uint32_t receive_psn = 0;
    std::uint32_t send_psn = 0;
    std::uint32_t destination = 0;
    std::uint32_t access = 0;
    Depths depths;
    Path path;
    Path alternate_path;
    std::uint16_t key_index = 0;
    std::uint16_t alternate_key_index = 0;
    std::uint8_t notify_drained = 0;
    std::uint8_t draining = 0;
    std::uint8_t max_reads = 0;
    std::uint8_t max_reads_of_peer = 0;
    std::uint8_t min_rnr_timer = 0;
    std::uint8_t port = 0;
    std::uint8_t timeout = 0;
    std::uint8_t retries = 0;
    std::uint8_t rnr_retries = 0;
    std::uint8_t alternate_port = 0;
    std::uint8_t alternate_timeout = 0;
    std::uint32_t rate_limit = 0;
};

enum AttributeMask : int {
    with_state = 1 << 0,
    with_access = 1 << 3,
    with_key_index = 1 << 4,
    with_port = 1 << 5,
    with_path = 1 << 7,
    with_path_mtu = 1 << 8,
    with_timeout = 1 << 9,
    with_retries = 1 << 10,
    with_rnr_retries = 1 << 11,
    with_receive_psn = 1 << 12,
    with_max_reads = 1 << 13,
    with_min_rnr_timer = 1 << 15,
    with_send_psn = 1 << 16,
    with_max_reads_of_peer = 1 << 17,
    with_destination = 1 << 20,
};

}  // namespace collectives::verbs::abi
