// Compares verbs/abi.hpp with the header of rdma-core, where that is installed; `make test-verbs` brings its
// own. Elsewhere ctest counts the test as skipped.
#include <doctest/doctest.h>

#include "verbs/abi.hpp"

#if __has_include(<infiniband/verbs.h>)

#include <infiniband/verbs.h>

namespace abi = collectives::verbs::abi;

#define SAME(ours, member, theirs, other)                                  \
    static_assert(offsetof(abi::ours, member) == offsetof(theirs, other)); \
    static_assert(sizeof(abi::ours::member) == sizeof(theirs::other))
#define SAME_CODE(ours, theirs) static_assert(static_cast<int>(abi::ours) == static_cast<int>(theirs))
#define SAME_SIZE(ours, theirs) static_assert(sizeof(abi::ours) == sizeof(theirs))

SAME_SIZE(Gid, ibv_gid);
SAME_SIZE(GidEntry, ibv_gid_entry);
SAME(GidEntry, index, ibv_gid_entry, gid_index);
SAME(GidEntry, type, ibv_gid_entry, gid_type);
SAME_CODE(gid_roce_v1, IBV_GID_TYPE_ROCE_V1);
SAME_CODE(gid_roce_v2, IBV_GID_TYPE_ROCE_V2);

static_assert(sizeof(abi::PortAttributes) >= sizeof(ibv_port_attr));
SAME(PortAttributes, state, ibv_port_attr, state);
SAME(PortAttributes, active_mtu, ibv_port_attr, active_mtu);
SAME(PortAttributes, n_gids, ibv_port_attr, gid_tbl_len);
SAME(PortAttributes, max_message, ibv_port_attr, max_msg_sz);
SAME(PortAttributes, lid, ibv_port_attr, lid);
SAME(PortAttributes, link_layer, ibv_port_attr, link_layer);
SAME_CODE(port_active, IBV_PORT_ACTIVE);
SAME_CODE(fork_unneeded, IBV_FORK_UNNEEDED);
SAME_CODE(port_down, IBV_PORT_DOWN);
SAME_CODE(layer_infiniband, IBV_LINK_LAYER_INFINIBAND);
SAME_CODE(layer_ethernet, IBV_LINK_LAYER_ETHERNET);

SAME_SIZE(DeviceAttributes, ibv_device_attr);
SAME(DeviceAttributes, max_requests, ibv_device_attr, max_qp_wr);
SAME(DeviceAttributes, max_completions, ibv_device_attr, max_cqe);
SAME(DeviceAttributes, n_ports, ibv_device_attr, phys_port_cnt);

SAME_SIZE(Region, ibv_mr);
SAME(Region, local_key, ibv_mr, lkey);
SAME(Region, remote_key, ibv_mr, rkey);
SAME_CODE(access_local_write, IBV_ACCESS_LOCAL_WRITE);
SAME_CODE(access_remote_write, IBV_ACCESS_REMOTE_WRITE);

SAME_SIZE(Channel, ibv_comp_channel);
SAME(Channel, descriptor, ibv_comp_channel, fd);

SAME_SIZE(Segment, ibv_sge);
SAME(Segment, length, ibv_sge, length);
SAME(Segment, local_key, ibv_sge, lkey);
SAME_SIZE(SendRequest, ibv_send_wr);
SAME(SendRequest, segments, ibv_send_wr, sg_list);
SAME(SendRequest, n_segments, ibv_send_wr, num_sge);
SAME(SendRequest, opcode, ibv_send_wr, opcode);
SAME(SendRequest, flags, ibv_send_wr, send_flags);
SAME(SendRequest, immediate, ibv_send_wr, imm_data);
SAME(SendRequest, remote_address, ibv_send_wr, wr.rdma.remote_addr);
SAME(SendRequest, remote_key, ibv_send_wr, wr.rdma.rkey);
SAME_CODE(rdma_write_with_immediate, IBV_WR_RDMA_WRITE_WITH_IMM);
SAME_CODE(rdma_write, IBV_WR_RDMA_WRITE);
SAME_CODE(send_signalled, IBV_SEND_SIGNALED);
SAME_CODE(send_inline, IBV_SEND_INLINE);
SAME_SIZE(ReceiveRequest, ibv_recv_wr);
SAME(ReceiveRequest, n_segments, ibv_recv_wr, num_sge);

SAME_SIZE(Completion, ibv_wc);
SAME(Completion, status, ibv_wc, status);
SAME(Completion, opcode, ibv_wc, opcode);
SAME(Completion, length, ibv_wc, byte_len);
SAME(Completion, immediate, ibv_wc, imm_data);
SAME(Completion, queue_pair, ibv_wc, qp_num);
SAME_CODE(completed_receive, IBV_WC_RECV);
SAME_CODE(completed_write, IBV_WC_RDMA_WRITE);
SAME_CODE(status_flushed, IBV_WC_WR_FLUSH_ERR);
SAME_CODE(status_retries, IBV_WC_RETRY_EXC_ERR);
SAME_CODE(status_remote_access, IBV_WC_REM_ACCESS_ERR);

SAME_SIZE(Table, ibv_context_ops);
SAME(Table, poll, ibv_context_ops, poll_cq);
SAME(Table, request_notification, ibv_context_ops, req_notify_cq);
SAME(Table, post_send, ibv_context_ops, post_send);
SAME(Table, post_receive, ibv_context_ops, post_recv);
SAME(Context, table, ibv_context, ops);
SAME_SIZE(Context, ibv_context);
SAME(Context, extended, ibv_context, abi_compat);
// Distances from the end, see ExtendedContext.
#define SAME_BEFORE_END(ours, theirs)                                                    \
    static_assert(sizeof(abi::ExtendedContext) - offsetof(abi::ExtendedContext, ours) == \
                  sizeof(verbs_context) - offsetof(verbs_context, theirs))
SAME_BEFORE_END(query_device, query_device_ex);
SAME_BEFORE_END(size, sz);
SAME_BEFORE_END(context, context);
static_assert(sizeof(abi::ExtendedAttributes) >= sizeof(ibv_device_attr_ex));
SAME(ExtendedAttributes, on_demand, ibv_device_attr_ex, odp_caps.general_caps);
SAME(ExtendedAttributes, on_demand_reliable, ibv_device_attr_ex, odp_caps.per_transport_caps.rc_odp_caps);
SAME_CODE(on_demand_supported, IBV_ODP_SUPPORT);
SAME_CODE(on_demand_write, IBV_ODP_SUPPORT_WRITE);
SAME_CODE(access_on_demand, IBV_ACCESS_ON_DEMAND);
SAME(CompletionQueue, context, ibv_cq, context);

SAME(QueuePair, context, ibv_qp, context);
SAME(QueuePair, number, ibv_qp, qp_num);
SAME_SIZE(Depths, ibv_qp_cap);
SAME_SIZE(QueuePairInit, ibv_qp_init_attr);
SAME(QueuePairInit, depths, ibv_qp_init_attr, cap);
SAME(QueuePairInit, type, ibv_qp_init_attr, qp_type);
SAME(QueuePairInit, signal_all, ibv_qp_init_attr, sq_sig_all);
SAME_CODE(reliable_connection, IBV_QPT_RC);

SAME_SIZE(Path, ibv_ah_attr);
SAME(Path, source_index, ibv_ah_attr, grh.sgid_index);
SAME(Path, hop_limit, ibv_ah_attr, grh.hop_limit);
SAME(Path, lid, ibv_ah_attr, dlid);
SAME(Path, is_global, ibv_ah_attr, is_global);
SAME(Path, port, ibv_ah_attr, port_num);
SAME_SIZE(QueuePairAttributes, ibv_qp_attr);
SAME(QueuePairAttributes, path_mtu, ibv_qp_attr, path_mtu);
SAME(QueuePairAttributes, receive_psn, ibv_qp_attr, rq_psn);
SAME(QueuePairAttributes, send_psn, ibv_qp_attr, sq_psn);
SAME(QueuePairAttributes, destination, ibv_qp_attr, dest_qp_num);
SAME(QueuePairAttributes, access, ibv_qp_attr, qp_access_flags);
SAME(QueuePairAttributes, path, ibv_qp_attr, ah_attr);
SAME(QueuePairAttributes, key_index, ibv_qp_attr, pkey_index);
SAME(QueuePairAttributes, max_reads, ibv_qp_attr, max_rd_atomic);
SAME(QueuePairAttributes, max_reads_of_peer, ibv_qp_attr, max_dest_rd_atomic);
SAME(QueuePairAttributes, min_rnr_timer, ibv_qp_attr, min_rnr_timer);
SAME(QueuePairAttributes, port, ibv_qp_attr, port_num);
SAME(QueuePairAttributes, timeout, ibv_qp_attr, timeout);
SAME(QueuePairAttributes, retries, ibv_qp_attr, retry_cnt);
SAME(QueuePairAttributes, rnr_retries, ibv_qp_attr, rnr_retry);
SAME_CODE(with_state, IBV_QP_STATE);
SAME_CODE(with_access, IBV_QP_ACCESS_FLAGS);
SAME_CODE(with_key_index, IBV_QP_PKEY_INDEX);
SAME_CODE(with_port, IBV_QP_PORT);
SAME_CODE(with_path, IBV_QP_AV);
SAME_CODE(with_path_mtu, IBV_QP_PATH_MTU);
SAME_CODE(with_timeout, IBV_QP_TIMEOUT);
SAME_CODE(with_retries, IBV_QP_RETRY_CNT);
SAME_CODE(with_rnr_retries, IBV_QP_RNR_RETRY);
SAME_CODE(with_receive_psn, IBV_QP_RQ_PSN);
SAME_CODE(with_max_reads, IBV_QP_MAX_QP_RD_ATOMIC);
SAME_CODE(with_min_rnr_timer, IBV_QP_MIN_RNR_TIMER);
SAME_CODE(with_send_psn, IBV_QP_SQ_PSN);
SAME_CODE(with_max_reads_of_peer, IBV_QP_MAX_DEST_RD_ATOMIC);
SAME_CODE(with_destination, IBV_QP_DEST_QPN);
SAME_CODE(state_init, IBV_QPS_INIT);
SAME_CODE(state_ready_to_receive, IBV_QPS_RTR);
SAME_CODE(state_ready_to_send, IBV_QPS_RTS);

TEST_CASE("the declarations are those of rdma-core") {}

#else

TEST_CASE("the declarations are those of rdma-core" * doctest::skip()) {}

TEST_CASE("what was not compared") {
    MESSAGE("skipped: <infiniband/verbs.h> is not installed (apt-get install libibverbs-dev)");
}

#endif
