#include "verbs/library.hpp"

#include <string>

#include "base/error.hpp"
#include "base/shared_object.hpp"

namespace collectives::verbs {

namespace {

constexpr const char* file_name = "libibverbs.so.1";

template <typename Function>
void find(const SharedObject& object, const char* symbol, Function*& function) {
    function = reinterpret_cast<Function*>(object.symbol(symbol));
    if (function != nullptr) return;
    throw Error(ErrorKind::transport_unavailable, std::string(file_name) +
                                                      " of this machine is too old: it has no function " +
                                                      symbol + "; RDMA verbs need rdma-core 32 or newer");
}

Library load() {
    // Its drivers are plug-ins of its own, which find it by its name.
    std::string why;
    const SharedObject object = SharedObject::open(file_name, why);
    if (!object) {
        throw Error(ErrorKind::transport_unavailable,
                    std::string("RDMA verbs need libibverbs, which cannot be loaded: ") + why +
                        ". Install it: apt-get install ibverbs-providers (Debian, Ubuntu), dnf install "
                        "libibverbs (Fedora, RHEL)");
    }
    Library found{};
    find(object, "ibv_get_device_list", found.get_device_list);
    find(object, "ibv_free_device_list", found.free_device_list);
    find(object, "ibv_get_device_name", found.get_device_name);
    find(object, "ibv_open_device", found.open_device);
    find(object, "ibv_close_device", found.close_device);
    find(object, "ibv_query_device", found.query_device);
    find(object, "ibv_query_port", found.query_port);
    find(object, "_ibv_query_gid_ex", found.query_gid);
    find(object, "ibv_alloc_pd", found.alloc_domain);
    find(object, "ibv_dealloc_pd", found.free_domain);
    find(object, "ibv_reg_mr", found.reg_mr);
    find(object, "ibv_dereg_mr", found.dereg_mr);
    find(object, "ibv_create_comp_channel", found.create_channel);
    find(object, "ibv_destroy_comp_channel", found.destroy_channel);
    find(object, "ibv_create_cq", found.create_completion_queue);
    find(object, "ibv_destroy_cq", found.destroy_completion_queue);
    find(object, "ibv_get_cq_event", found.get_event);
    find(object, "ibv_ack_cq_events", found.ack_events);
    find(object, "ibv_create_qp", found.create_queue_pair);
    find(object, "ibv_modify_qp", found.modify_queue_pair);
    find(object, "ibv_destroy_qp", found.destroy_queue_pair);
    find(object, "ibv_wc_status_str", found.status_text);
    found.is_fork_initialized =
        reinterpret_cast<std::int32_t (*)()>(object.symbol("ibv_is_fork_initialized"));
    found.reg_dma_buf = reinterpret_cast<decltype(found.reg_dma_buf)>(object.symbol("ibv_reg_dmabuf_mr"));
    return found;
}

}  // namespace

const Library& library() {
    static const Library loaded = load();
    return loaded;
}

}  // namespace collectives::verbs
