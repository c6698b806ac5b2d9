#include "verbs/dma_buf.hpp"

#include <cerrno>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "verbs/library.hpp"

namespace collectives::verbs {

std::shared_ptr<const Region> register_dma_buf(std::shared_ptr<Device> device, const DmaBuf& memory) {
    const auto refuse = [&](const std::string& why) {
        throw Error(ErrorKind::transport_unavailable, "RDMA device " + device->name() + " cannot register " +
                                                          std::to_string(memory.length) +
                                                          " bytes of a dma-buf: " + why);
    };
    const auto registers = library().reg_dma_buf;
    if (registers == nullptr) {
        refuse("libibverbs of this machine has no ibv_reg_dmabuf_mr, which rdma-core has since version 34");
    }
    abi::Region* const region =
        registers(device->domain(), memory.offset, memory.length, memory.address, memory.descriptor,
                  abi::access_local_write | abi::access_remote_write);
    if (region == nullptr) {
        const bool is_unknown = errno == EOPNOTSUPP || errno == ENOSYS || errno == EPROTONOSUPPORT;
        refuse(errno_text(errno) + (is_unknown ? " (its driver in this kernel knows no dma-buf)" : ""));
    }
    return Region::adopt(std::move(device), region, memory.length);
}

}  // namespace collectives::verbs
