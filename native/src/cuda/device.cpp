#include "cuda/device.hpp"

#include <array>

#include "base/error.hpp"
#include "cuda/driver.hpp"

namespace collectives::cuda {

namespace {

int attribute(const Api& api, Attribute which, DeviceNumber number) {
    int value = 0;
    check(api.device_get_attribute(&value, static_cast<int>(which), number), "cuDeviceGetAttribute", number);
    return value;
}

std::string hexadecimal(const Uuid& uuid) {
    constexpr std::array digits{'0', '1', '2', '3', '4', '5', '6', '7',
                                '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
    std::string text;
    for (const char byte : uuid.bytes) {
        text += digits[static_cast<unsigned char>(byte) >> 4];
        text += digits[static_cast<unsigned char>(byte) & 15];
    }
    return text;
}

int count(const Api& api) {
    int found = 0;
    check(api.device_get_count(&found), "cuDeviceGetCount");
    return found;
}

Device describe(const Api& api, int number) {
    DeviceNumber handle = 0;
    check(api.device_get(&handle, number), "cuDeviceGet", number);
    std::array<char, 256> name{};
    check(api.device_get_name(name.data(), static_cast<int>(name.size()) - 1, handle), "cuDeviceGetName",
          number);
    Uuid uuid{};
    check(api.device_get_uuid(&uuid, handle), "cuDeviceGetUuid", number);
    return {number, name.data(), hexadecimal(uuid), attribute(api, Attribute::multiprocessors, handle),
            10 * attribute(api, Attribute::compute_major, handle) +
                attribute(api, Attribute::compute_minor, handle)};
}

std::string address_text(Pointer address) {
    constexpr std::array digits{'0', '1', '2', '3', '4', '5', '6', '7',
                                '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
    std::string text;
    do {
        text.insert(text.begin(), digits[address & 15]);
        address >>= 4;
    } while (address != 0);
    return "0x" + text;
}

}  // namespace

std::vector<Device> devices() {
    const Api& api = driver();
    std::vector<Device> found;
    for (int number = 0; number < count(api); ++number) found.push_back(describe(api, number));
    return found;
}

Device device(int number) {
    const Api& api = driver();
    if (number < 0 || number >= count(api)) {
        throw Error(ErrorKind::invalid, "there is no device " + std::to_string(number) + "; there are " +
                                            std::to_string(count(api)) + " (see CUDA_VISIBLE_DEVICES)");
    }
    return describe(api, number);
}

bool can_access_peer(int device, int other) {
    const Api& api = driver();
    DeviceNumber one = 0;
    DeviceNumber two = 0;
    check(api.device_get(&one, device), "cuDeviceGet", device);
    check(api.device_get(&two, other), "cuDeviceGet", other);
    int can = 0;
    check(api.can_access_peer(&can, one, two), "cuDeviceCanAccessPeer", device);
    return can != 0;
}

Place place_of(Pointer address) {
    const Api& api = driver();
    unsigned type = 0;
    unsigned managed = 0;
    int device = -1;
    Pointer start = 0;
    std::size_t bytes = 0;
    std::array which{
        static_cast<int>(PointerAttribute::memory_type), static_cast<int>(PointerAttribute::is_managed),
        static_cast<int>(PointerAttribute::device_ordinal), static_cast<int>(PointerAttribute::range_start),
        static_cast<int>(PointerAttribute::range_size)};
    std::array<void*, which.size()> values{&type, &managed, &device, &start, &bytes};
    // For an address that it does not know, the driver succeeds and sets all values to zero.
    check(
        api.pointer_get_attributes(static_cast<unsigned>(which.size()), which.data(), values.data(), address),
        "cuPointerGetAttributes");
    if (type == 0) return {};
    return {static_cast<MemoryType>(type), managed != 0, device, start, bytes};
}

std::size_t free_memory() {
    std::size_t free = 0;
    std::size_t all = 0;
    return driver().memory_info(&free, &all) == success ? free : 0;
}

void check_on_device(Pointer address, std::size_t bytes, int device, const char* what) {
    if (bytes == 0) return;
    const Place place = place_of(address);
    const std::string where = std::string(what) + " (address " + address_text(address) + ")";
    if (place.type == MemoryType::unknown || (place.type == MemoryType::host && !place.is_managed)) {
        throw Error(ErrorKind::invalid,
                    where +
                        " is not memory of a CUDA device: its owner may have freed it, or it is host memory; "
                        "give an array on device " +
                        std::to_string(device));
    }
    if (!place.is_managed && place.device != device) {
        throw Error(ErrorKind::invalid, where + " is memory of device " + std::to_string(place.device) +
                                            ", but the call is for device " + std::to_string(device) +
                                            ": a communicator uses one device on each rank");
    }
    if (place.bytes == 0) return;
    // Allocations that lie side by side on a device may belong together, as in PyTorch's expandable segments.
    std::size_t there = address < place.start ? 0 : place.bytes - (address - place.start);
    for (Place next = place; there < bytes; there += next.bytes) {
        next = place_of(address + there);
        if (next.bytes == 0 || next.start != address + there || next.device != device) break;
    }
    if (there < bytes) {
        throw Error(ErrorKind::invalid, where + " has " + std::to_string(there) +
                                            " bytes in its allocation, but the call needs " +
                                            std::to_string(bytes));
    }
}

}  // namespace collectives::cuda
