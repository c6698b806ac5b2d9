#include "verbs/device.hpp"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "verbs/library.hpp"
#include "verbs/on_demand.hpp"

namespace collectives::verbs {

namespace {

struct OpenDevices {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<Device>> by_name;
};

OpenDevices& open_devices() {
    static OpenDevices devices;
    return devices;
}

class DeviceList {
  public:
    DeviceList() : list_(library().get_device_list(&count_)) {}  // null without RDMA in the kernel
    DeviceList(const DeviceList&) = delete;
    DeviceList& operator=(const DeviceList&) = delete;
    ~DeviceList() {
        if (list_ != nullptr) library().free_device_list(list_);
    }
    std::span<abi::Device*> all() const {
        return list_ == nullptr ? std::span<abi::Device*>()
                                : std::span(list_, static_cast<std::size_t>(count_));
    }

  private:
    int count_ = 0;
    abi::Device** list_;
};

bool may_lock_all() {
    __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> sets{};
    return ::syscall(SYS_capget, &head, sets.data()) == 0 && (sets[0].effective >> CAP_IPC_LOCK & 1U) != 0;
}

constexpr std::size_t kib = 1024;

// Memory of this process that devices use, which counts against the limit.
std::size_t pinned_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmPin:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * kib;
    }
    return 0;
}

}  // namespace

std::optional<std::string> why_not_locked(std::size_t bytes) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
    const std::size_t used = pinned_bytes();
    if (limit.rlim_cur >= used + bytes || may_lock_all()) return std::nullopt;
    return "RDMA needs " + std::to_string(bytes / kib) +
           " KiB of memory that stays in place, and this process may lock " +
           std::to_string(limit.rlim_cur / kib) + " KiB (ulimit -l), of which it has locked " +
           std::to_string(used / kib) +
           " KiB; raise it: `ulimit -l unlimited`, memlock in /etc/security/limits.conf, "
           "LimitMEMLOCK=infinity of a service, --ulimit memlock=-1 of a container";
}

std::vector<std::string> device_names() {
    std::vector<std::string> names;
    const DeviceList devices;  // a temporary one would be gone in the loop
    for (abi::Device* const device : devices.all()) {
        names.emplace_back(library().get_device_name(device));
    }
    return names;
}

std::shared_ptr<Device> Device::open(const std::string& name) {
    const std::lock_guard lock(open_devices().mutex);
    std::weak_ptr<Device>& place = open_devices().by_name[name];
    std::shared_ptr<Device> device = place.lock();
    if (!device) {
        device = std::shared_ptr<Device>(new Device(name));
        place = device;
    }
    return device;
}

Device::Device(std::string name) : name_(std::move(name)) {
    const auto fail = [this](const char* what) {
        const int error = errno;
        if (context_ != nullptr) library().close_device(context_);
        throw Error(ErrorKind::transport_unavailable,
                    "RDMA device " + name_ + " cannot be used: " + what + ": " + errno_text(error));
    };
    errno = ENODEV;
    const DeviceList devices;
    for (abi::Device* const device : devices.all()) {
        if (name_ == library().get_device_name(device)) context_ = library().open_device(device);
    }
    if (context_ == nullptr) fail("it cannot be opened");
    abi::DeviceAttributes attributes;
    if (const int error = library().query_device(context_, &attributes); error != 0) {
        errno = error;
        fail("its attributes cannot be read");
    }
    n_ports_ = attributes.n_ports;
    pages_on_demand_ = verbs::pages_on_demand(context_);
    domain_ = library().alloc_domain(context_);
    if (domain_ == nullptr) fail("it has no protection domain left");
}

Device::~Device() {
    library().free_domain(domain_);
    library().close_device(context_);
}

std::optional<abi::GidEntry> Device::gid(std::uint8_t port, std::uint32_t index) const {
    abi::GidEntry entry;
    if (library().query_gid(context_, port, index, &entry, 0, sizeof(entry)) != 0) return std::nullopt;
    return entry;
}

bool Device::is_down(std::uint8_t port) const {
    abi::PortAttributes attributes;
    return library().query_port(context_, port, &attributes) == 0 && attributes.state == abi::port_down;
}

Registered::Registered(std::shared_ptr<Device> device, std::size_t bytes, bool is_written_by_peer)
    : device_(std::move(device)) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw_system("mmap", errno);
    memory_ = {static_cast<std::byte*>(memory), bytes};
    ::madvise(memory, bytes, MADV_DONTFORK);
    const int access = abi::access_local_write | (is_written_by_peer ? abi::access_remote_write : 0);
    region_ = library().reg_mr(device_->domain(), memory, bytes, access);
    if (region_ != nullptr) return;
    const int error = errno;
    ::munmap(memory, bytes);
    const std::optional<std::string> limit = error == ENOMEM ? why_not_locked(bytes) : std::nullopt;
    throw Error(ErrorKind::transport_unavailable,
                "RDMA device " + device_->name() + " cannot register " + std::to_string(bytes / kib) +
                    " KiB of memory: " + errno_text(error) + (limit ? ". " + *limit : ""));
}

Registered::~Registered() {
    // Memory whose registration cannot be ended stays mapped: a peer may write to it for ever.
    if (library().dereg_mr(region_) == 0) ::munmap(memory_.data(), memory_.size());
}

}  // namespace collectives::verbs
