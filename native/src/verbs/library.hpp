// libibverbs, loaded when it is first needed.
//
// Invariant: this library is never linked to libibverbs, so that it works on machines without it. All
// functions are found together or not at all, and the library stays loaded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verbs/abi.hpp"

namespace collectives::verbs {

struct Library {
    abi::Device** (*get_device_list)(int* count);
    void (*free_device_list)(abi::Device** list);
    const char* (*get_device_name)(abi::Device* device);
    abi::Context* (*open_device)(abi::Device* device);
    int (*close_device)(abi::Context* context);
    int (*query_device)(abi::Context* context, abi::DeviceAttributes* attributes);
    int (*query_port)(abi::Context* context, std::uint8_t port, abi::PortAttributes* attributes);
    int (*query_gid)(abi::Context* context, std::uint32_t port, std::uint32_t index, abi::GidEntry* entry,
                     std::uint32_t flags, std::size_t entry_size);
    abi::Domain* (*alloc_domain)(abi::Context* context);
    int (*free_domain)(abi::Domain* domain);
    abi::Region* (*reg_mr)(abi::Domain* domain, void* address, std::size_t length, int access);
    int (*dereg_mr)(abi::Region* region);
    abi::Channel* (*create_channel)(abi::Context* context);
    int (*destroy_channel)(abi::Channel* channel);
    abi::CompletionQueue* (*create_completion_queue)(abi::Context* context, int entries, void* user_context,
                                                     abi::Channel* channel, int vector);
    int (*destroy_completion_queue)(abi::CompletionQueue* queue);
    int (*get_event)(abi::Channel* channel, abi::CompletionQueue** queue, void** user_context);
    void (*ack_events)(abi::CompletionQueue* queue, unsigned count);
    abi::QueuePair* (*create_queue_pair)(abi::Domain* domain, abi::QueuePairInit* init);
    int (*modify_queue_pair)(abi::QueuePair* pair, abi::QueuePairAttributes* attributes, int mask);
    int (*destroy_queue_pair)(abi::QueuePair* pair);
    const char* (*status_text)(std::uint32_t status);
    std::int32_t (*is_fork_initialized)();  // an abi::ForkStatus; null before rdma-core 35
    // Null before rdma-core 34.
    abi::Region* (*reg_dma_buf)(abi::Domain* domain, std::uint64_t offset, std::size_t length,
                                std::uint64_t address, int descriptor, int access);
};

// Throws Error(transport_unavailable), which says what to install, if it cannot be loaded.
const Library& library();

}  // namespace collectives::verbs
