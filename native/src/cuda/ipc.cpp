#include "cuda/ipc.hpp"

#include <array>

#include "base/error.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace collectives::cuda {

Exported describe(Pointer address, std::size_t bytes, int device) {
    const Api& api = driver();
    unsigned long long buffer = 0;
    unsigned legacy = 0;
    unsigned long long types = 0;
    std::array which{static_cast<int>(PointerAttribute::buffer_id),
                     static_cast<int>(PointerAttribute::has_legacy_ipc),
                     static_cast<int>(PointerAttribute::allowed_handle_types)};
    std::array<void*, which.size()> values{&buffer, &legacy, &types};
    check(
        api.pointer_get_attributes(static_cast<unsigned>(which.size()), which.data(), values.data(), address),
        "cuPointerGetAttributes", device);
    Exported found;
    found.device = static_cast<std::uint32_t>(device);
    found.buffer = buffer;
    Pointer start = 0;
    std::size_t length = 0;
    if (api.memory_range(&start, &length, address) != success) return found;
    found.start = start;
    found.bytes = length;
    if (bytes > length - (address - start)) return found;  // it reaches into the next allocation
    if (legacy != 0) {
        found.route = Route::handle;
    } else if ((types & handle_descriptor) != 0) {
        found.route = Route::descriptor;
    }
    return found;
}

UniqueFd complete(Exported& exported) {
    const Api& api = driver();
    if (exported.route == Route::handle) {
        if (api.ipc_get_handle(&exported.handle, exported.start) != success) exported.route = Route::none;
        return {};
    }
    if (exported.route != Route::descriptor) return {};
    int descriptor = -1;
    AllocationHandle allocation = 0;
    exported.route = Route::none;
    if (api.retain_allocation(&allocation, reinterpret_cast<void*>(exported.start)) != success) return {};
    if (api.export_allocation(&descriptor, allocation, handle_descriptor, 0) == success) {
        exported.route = Route::descriptor;
    }
    api.release_allocation(allocation);
    return UniqueFd(descriptor);
}

Imported::Imported(std::shared_ptr<const PrimaryContext> context, const Exported& exported,
                   UniqueFd descriptor)
    : context_(std::move(context)), route_(exported.route), bytes_(exported.bytes) {
    const Current current(*context_);
    const RelaxedCapture relaxed;
    switch (route_) {
        case Route::address:
            start_ = exported.start;
            return;
        case Route::handle:
            check(driver().ipc_open_handle(&start_, exported.handle, ipc_lazy_peer_access),
                  "cuIpcOpenMemHandle", context_->device());
            return;
        case Route::descriptor:
            map(descriptor);
            return;
        case Route::none:
            break;
    }
    throw Error(ErrorKind::transport_unavailable, "memory that cannot be exported was to be opened");
}

void Imported::map(const UniqueFd& descriptor) {
    const Api& api = driver();
    AllocationHandle allocation = 0;
    auto* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get()));
    check(api.import_allocation(&allocation, number, handle_descriptor), "cuMemImportFromShareableHandle",
          context_->device());
    Pointer reserved = 0;
    Result result = api.reserve_addresses(&reserved, bytes_, 0, 0, 0);
    const char* function = "cuMemAddressReserve";
    if (result == success) {
        function = "cuMemMap";
        result = api.map_allocation(reserved, bytes_, 0, allocation, 0);
        if (result == success) {
            const AccessDescription access{location_device, context_->device(), access_read_write};
            function = "cuMemSetAccess";
            result = api.set_access(reserved, bytes_, &access, 1);
            if (result != success) api.unmap_allocation(reserved, bytes_);
        }
        if (result != success) api.free_addresses(reserved, bytes_);
    }
    api.release_allocation(allocation);  // the mapping keeps the memory
    check(result, function, context_->device());
    start_ = reserved;
}

Imported::~Imported() {
    if (route_ == Route::address) return;
    try {
        const Current current(*context_);
        const RelaxedCapture relaxed;
        const Api& api = driver();
        if (route_ == Route::handle) {
            api.ipc_close_handle(start_);
        } else {
            api.unmap_allocation(start_, bytes_);
            api.free_addresses(start_, bytes_);
        }
    } catch (const Error&) {
        return;  // the context is lost, and its mappings with it
    }
}

}  // namespace collectives::cuda
