#include "verbs/library.hpp"

#include <dlfcn.h>

#include <string>

#include "base/error.hpp"

namespace collectives::verbs {

namespace {

constexpr const char* file_name = "libibverbs.so.1";

template <typename Function>
void find(void* handle, const char* symbol, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(handle, symbol));
    if (function != nullptr) return;
    throw Error(ErrorKind::transport_unavailable, std::string(file_name) +
                                                      " of this machine is too old: it has no function " +
                                                      symbol + "; RDMA verbs need rdma-core 32 or newer");
}

Library load() {
    // Its drivers are plug-ins of its own, which find it by its name.
    void* const handle = ::dlopen(file_name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        throw Error(ErrorKind::transport_unavailable,
                    std::string("RDMA verbs need libibverbs, which cannot be loaded: ") + ::dlerror() +
                        ". Install it: apt-get install ibverbs-providers (Debian, Ubuntu), dnf install "
                        "libibverbs (Fedora, RHEL)");
    }
    Library found{};
    find(handle, "ibv_get_device_list", found.get_device_list);
    find(handle, "ibv_free_device_list", found.free_device_list);
    find(handle, "ibv_get_device_name", found.get_device_name);
    find(handle, "ibv_open_device", found.open_device);
    find(handle, "ibv_close_device", found.close_device);
    find(handle, "ibv_query_device", found.query_device);
    find(handle, "ibv_query_port", found.query_port);
    find(handle, "_ibv_query_gid_ex", found.query_gid);
    find(handle, "ibv_alloc_pd", found.alloc_domain);
    find(handle, "ibv_dealloc_pd", found.free_domain);
    find(handle, "ibv_reg_mr", found.reg_mr);
    find(handle, "ibv_dereg_mr", found.dereg_mr);
    find(handle, "ibv_create_comp_channel", found.create_channel);
    find(handle, "ibv_destroy_comp_channel", found.destroy_channel);
    find(handle, "ibv_create_cq", found.create_completion_queue);
    find(handle, "ibv_destroy_cq", found.destroy_completion_queue);
    find(handle, "ibv_get_cq_event", found.get_event);
    find(handle, "ibv_ack_cq_events", found.ack_events);
    find(handle, "ibv_create_qp", found.create_queue_pair);
    find(handle, "ibv_modify_qp", found.modify_queue_pair);
    find(handle, "ibv_destroy_qp", found.destroy_queue_pair);
    find(handle, "ibv_wc_status_str", found.status_text);
    return found;
}

}  // namespace

const Library& library() {
    static const Library loaded = load();
    return loaded;
}

}  // namespace collectives::verbs
