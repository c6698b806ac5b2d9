"""What may be given by place to Horovod 0.28's functions, in order, with defaults.

Invariant: these are Horovod's, whatever this library has.
"""

from __future__ import annotations

from typing import Final

_COMMON: Final = {
    "init": "comm=None process_sets=None",
    "shutdown": "",
    "is_initialized": "",
    "start_timeline": "file_path mark_cycles=False",
    "stop_timeline": "",
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"), ""),
    **dict.fromkeys(("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"), ""),
    **dict.fromkeys(("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"), ""),
}
_SETS: Final = {"add_process_set": "process_set", "remove_process_set": "process_set"}
_SCALES: Final = "prescale_factor=1.0 postscale_factor=1.0"
_SET: Final = "process_set=global_process_set"

TENSORFLOW: Final = {
    **_COMMON,
    **_SETS,
    "is_homogeneous": "",
    "allreduce": "tensor average=None device_dense='' device_sparse='' compression=Compression.none op=None "
    f"{_SCALES} name=None {_SET} ignore_name_scope=False",
    "grouped_allreduce": "tensors average=None device_dense='' device_sparse='' compression=Compression.none op=None "
    f"{_SCALES} {_SET} ignore_name_scope=False name=None",
    "reducescatter": "tensor device_dense='' compression=Compression.none op=Average name=None "
    f"{_SET} ignore_name_scope=False {_SCALES}",
    "grouped_reducescatter": f"tensors device_dense='' compression=Compression.none op=Average {_SET} {_SCALES}",
    "allgather": f"tensor name=None ignore_name_scope=False {_SET}",
    "grouped_allgather": f"tensors name=None ignore_name_scope=False {_SET}",
    "broadcast": f"tensor root_rank name=None ignore_name_scope=False {_SET}",
    "broadcast_": f"variables root_rank name=None {_SET}",
    "alltoall": f"tensor splits=None name=None ignore_name_scope=False {_SET}",
    "join": "",
    "size_op": "process_set_id=0 name=None",
    "process_set_included_op": "process_set_id=0 name=None",
    **dict.fromkeys(("rank_op", "local_rank_op", "local_size_op"), "name=None"),
    "broadcast_variables": f"variables root_rank {_SET} inplace=False",
    "broadcast_object": f"obj root_rank=0 session=None name=None {_SET}",
    "allgather_object": f"obj session=None name=None {_SET}",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": "root_rank device=''",
    "broadcast_object_fn": f"root_rank=0 session=None name=None {_SET}",
    "DistributedOptimizer": "optimizer name=None use_locking=False device_dense='' device_sparse='' "
    "compression=Compression.none sparse_as_dense=False backward_passes_per_step=1 op=Average "
    "gradient_predivide_factor=1.0 average_aggregated_gradients=False num_groups=0 groups=None "
    f"{_SET} scale_local_gradients=True",
    "DistributedGradientTape": "gradtape device_dense='' device_sparse='' compression=Compression.none "
    "sparse_as_dense=False op=Average gradient_predivide_factor=1.0 num_groups=0 groups=None "
    f"{_SET} scale_local_gradients=True",
    "PartialDistributedGradientTape": "gradtape device_dense='' device_sparse='' compression=Compression.none "
    "sparse_as_dense=False op=Average gradient_predivide_factor=1.0 num_groups=0 groups=None "
    f"{_SET} local_layers=None scale_local_gradients=True",
}

KERAS: Final = {
    **_COMMON,
    "allgather": "value name=None",
    "broadcast": "value root_rank name=None",
    "reducescatter": "value name=None op=Average",
    "broadcast_global_variables": "root_rank",
    "load_model": "filepath custom_optimizers=None custom_objects=None compression=Compression.none legacy_opts=False",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank device='' local_variables=None",
    "callbacks.MetricAverageCallback": "device=''",
    "callbacks.LearningRateScheduleCallback": "initial_lr multiplier start_epoch=0 end_epoch=None staircase=True "
    "momentum_correction=True steps_per_epoch=None",
    "callbacks.LearningRateWarmupCallback": "initial_lr warmup_epochs=5 momentum_correction=True steps_per_epoch=None "
    "verbose=0",
    "PartialDistributedOptimizer": "optimizer name=None device_dense='' device_sparse='' compression=Compression.none "
    "sparse_as_dense=False gradient_predivide_factor=1.0 op=Average backward_passes_per_step=1 "
    f"average_aggregated_gradients=False groups=None {_SET} local_layers=None scale_local_gradients=True",
}

# These are tensorflow.keras's: horovod.keras has fewer arguments of DistributedOptimizer, and average=True.
TENSORFLOW_KERAS: Final = {
    **KERAS,
    **_SETS,
    "DistributedOptimizer": "optimizer name=None device_dense='' device_sparse='' compression=Compression.none "
    "sparse_as_dense=False gradient_predivide_factor=1.0 op=Average backward_passes_per_step=1 "
    f"average_aggregated_gradients=False num_groups=0 groups=None {_SET} scale_local_gradients=True",
    "allreduce": f"value name=None average=None {_SCALES} op=None compression=Compression.none",
    "callbacks.BestModelCheckpoint": "monitor='val_loss' verbose=0 save_weights_only=False mode='auto' "
    "save_freq='epoch'",
}

_REDUCED: Final = f"average=None name=None op=None {_SCALES} {_SET}"
_PACKED: Final = f"average=None name=None compression=Compression.none op=None {_SCALES} {_SET}"

TORCH: Final = {
    **_COMMON,
    **_SETS,
    **dict.fromkeys(("allreduce_async", "allreduce_async_", "allreduce_"), f"tensor {_REDUCED}"),
    **dict.fromkeys(
        ("grouped_allreduce_async", "grouped_allreduce_async_", "grouped_allreduce_"), f"tensors {_REDUCED}"
    ),
    "allreduce": f"tensor {_PACKED}",
    "grouped_allreduce": f"tensors {_PACKED}",
    "sparse_allreduce_async": f"tensor name op {_SET}",
    **dict.fromkeys(("allgather", "allgather_async"), f"tensor name=None {_SET}"),
    **dict.fromkeys(("grouped_allgather", "grouped_allgather_async"), f"tensors name=None {_SET}"),
    **dict.fromkeys(
        ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"), f"tensor root_rank name=None {_SET}"
    ),
    **dict.fromkeys(("alltoall", "alltoall_async"), f"tensor splits=None name=None {_SET}"),
    "reducescatter": f"tensor name=None compression=Compression.none op=Average {_SET} {_SCALES}",
    "reducescatter_async": f"tensor name=None op=Average {_SET} {_SCALES}",
    "grouped_reducescatter": f"tensors name=None compression=Compression.none op=Average {_SET} {_SCALES}",
    "grouped_reducescatter_async": f"tensors name=None op=Average {_SET} {_SCALES}",
    "join": "device=-1",
    "barrier": _SET,
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model=None",
    "broadcast_object": f"obj root_rank=0 name=None {_SET}",
    "allgather_object": "obj name=None",
    "DistributedOptimizer": "optimizer named_parameters=None compression=Compression.none backward_passes_per_step=1 "
    f"op=Average gradient_predivide_factor=1.0 num_groups=0 groups=None sparse_as_dense=False {_SET}",
    "SyncBatchNorm": "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True",
}

# Names that are no functions.
VALUES: Final = {
    "TORCH": "Average Sum Adasum Min Max Product ProcessSet global_process_set Compression elastic "
    "HorovodInternalError",
    "TENSORFLOW": "Average Sum Adasum Min Max Product ProcessSet global_process_set Compression elastic "
    "SyncBatchNormalization HorovodInternalError",
    "KERAS": "Average Sum Adasum Compression callbacks elastic global_process_set HorovodInternalError",
    "TENSORFLOW_KERAS": "Average Sum Compression callbacks elastic ProcessSet global_process_set HorovodInternalError",
}
