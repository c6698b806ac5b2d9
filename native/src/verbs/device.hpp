// An open device with its protection domain, shared by all communicators of the process, and memory that is
// registered with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbs/abi.hpp"

namespace collectives::verbs {

// The names of this machine's devices. Throws Error(transport_unavailable) if libibverbs is not there.
std::vector<std::string> device_names();

class Device {
  public:
    // The device of that name, opened unless somebody has it open. From any thread. Throws
    // Error(transport_unavailable).
    static std::shared_ptr<Device> open(const std::string& name);
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    ~Device();

    const std::string& name() const { return name_; }
    abi::Context* context() const { return context_; }
    abi::Domain* domain() const { return domain_; }
    int n_ports() const { return n_ports_; }
    bool pages_on_demand() const { return pages_on_demand_; }  // see on_demand.hpp
    // Nothing if that place of the table is empty.
    std::optional<abi::GidEntry> gid(std::uint8_t port, std::uint32_t index) const;
    // Whether the port is down now, as far as the kernel tells.
    bool is_down(std::uint8_t port) const;

  private:
    explicit Device(std::string name);

    std::string name_;
    abi::Context* context_ = nullptr;
    abi::Domain* domain_ = nullptr;
    int n_ports_ = 0;
    bool pages_on_demand_ = false;
};

// Memory of the library's own that the device reads or writes.
//
// Invariant: the memory is unmapped after the registration has ended, so that no write of a peer, however
// late, reaches memory that is in other use. A forked child does not have these pages.
class Registered {
  public:
    // Throws Error(transport_unavailable), which says how to raise the limit of locked memory if that is it.
    Registered(std::shared_ptr<Device> device, std::size_t bytes, bool is_written_by_peer);
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    ~Registered();

    std::span<std::byte> bytes() const { return memory_; }
    std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(memory_.data()); }
    std::uint32_t local_key() const { return region_->local_key; }
    std::uint32_t remote_key() const { return region_->remote_key; }

  private:
    std::shared_ptr<Device> device_;
    std::span<std::byte> memory_;
    abi::Region* region_ = nullptr;
};

// Why so many bytes more than now cannot be locked in memory; nothing if the limit of this process permits
// it.
std::optional<std::string> why_not_locked(std::size_t bytes);

}  // namespace collectives::verbs
