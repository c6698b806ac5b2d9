// What the files of the binding share: conversion of errors to Python, and the memory of arrays.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION

#include <nanobind/nanobind.h>
#include <numpy/ndarraytypes.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "core/group.hpp"
#include "schedule/program.hpp"

namespace collectives {

nanobind::object to_python(const Error& error);
// The kind for "PeerLost", "OpTimeout" or "DesyncError"; `aborted` for all other names.
ErrorKind kind_named(const std::string& name);
// Set the Python error for the current C++ exception, an Error or one of the standard library.
void set_python_error();

// Called by a waiting thread: logs the engine's warnings, and returns whether a Python signal handler has
// raised an exception.
extern const Interrupted interrupted;

// numpy.ndarray
PyTypeObject* array_type();

inline std::size_t elements_of(const PyArrayObject* array) {
    std::size_t n = 1;
    for (int i = 0; i < PyArray_NDIM(array); ++i) n *= static_cast<std::size_t>(PyArray_DIM(array, i));
    return n;
}

// The memory of a contiguous NumPy array of `bytes / unit` elements, or null for None; `name` is its name in
// errors.
std::byte* memory(nanobind::handle array, std::uint64_t bytes, std::size_t unit, const char* name);
// The memory of an operation's input and output.
std::byte* input(const Operation& operation, nanobind::handle array);
std::byte* output(const Operation& operation, nanobind::handle array);

struct PyOperation {
    std::shared_ptr<const Operation> operation;
};

// The group of a native Group object, for calls that outlive this one.
std::shared_ptr<Group> group_of(nanobind::handle group);

// Adds Program and Operation.
void add_programs(nanobind::module_& module);
// Adds Ticket and Group.
void add_groups(nanobind::module_& module);
// Adds Latch and Repeater.
void add_repeaters(nanobind::module_& module);
// Adds what concerns CUDA devices.
void add_devices(nanobind::module_& module);
// Adds what concerns ranks that share a device.
void add_leader(nanobind::module_& module);
// Adds what concerns NCCL.
void add_nccl(nanobind::module_& module);
// Adds Plan.
void add_plans(nanobind::module_& module);
// Adds `encode` and `decode`.
void add_encoding(nanobind::module_& module);

}  // namespace collectives
