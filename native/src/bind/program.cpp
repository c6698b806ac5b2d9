// The Python classes Program, a compiled schedule, and Operation.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>

#include "bind/common.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

Chunk to_chunk(nb::handle triple) {
    const auto [buffer, first, count] = nb::cast<std::array<std::int64_t, 3>>(triple);
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (buffer < 0 || first < 0 || count < 0 || buffer > most || first > most || count > most) {
        throw nb::value_error("a chunk lies outside its buffer");
    }
    return {static_cast<int>(buffer), static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)};
}

Step to_step(nb::handle record) {
    const nb::sequence fields = nb::cast<nb::sequence>(record);
    Step step;
    const int kind = nb::cast<int>(fields[0]);
    if (kind < 0 || kind > static_cast<int>(StepKind::copy))
        throw nb::value_error("a step is of an unknown kind");
    step.kind = static_cast<StepKind>(kind);
    for (const nb::handle peer : fields[1]) step.peers.push_back(nb::cast<int>(peer));
    step.dst = to_chunk(fields[2]);
    for (const nb::handle source : fields[3]) {
        Operand operand;
        if (nb::isinstance<nb::int_>(source)) {
            operand.peer = nb::cast<int>(source);
            if (operand.peer < 0) throw nb::value_error("a step names a rank below 0");
        } else {
            operand.chunk = to_chunk(source);
        }
        step.operands.push_back(operand);
    }
    step.final = nb::cast<bool>(fields[4]);
    for (const nb::handle edge : fields[5]) {
        const auto [other, buffer, there, here] = nb::cast<std::array<std::uint32_t, 4>>(edge);
        step.dependencies.push_back({other, static_cast<int>(buffer), there, here});
    }
    return step;
}

std::shared_ptr<const Program> make_program(int rank, int size, std::pair<std::uint32_t, std::uint32_t> grid,
                                            const nb::sequence& scratch, const nb::sequence& steps,
                                            bool pooled, nb::handle flat) {
    std::vector<std::vector<Block>> slots;
    for (const nb::handle slot : scratch) {
        std::vector<Block>& blocks = slots.emplace_back();
        for (const nb::handle block : slot) {
            const auto [buffer, index] = nb::cast<std::pair<int, std::uint32_t>>(block);
            blocks.push_back({buffer, index});
        }
    }
    std::vector<Step> records;
    for (const nb::handle step : steps) records.push_back(to_step(step));
    std::optional<Exchange> exchange;
    if (!flat.is_none()) exchange = Exchange{to_chunk(flat[0]), to_chunk(flat[1])};
    return std::make_shared<const Program>(rank, size, grid.first, grid.second, std::move(slots),
                                           std::move(records), pooled, exchange);
}

Bounds to_bounds(nb::handle value, std::uint32_t blocks) {
    if (nb::isinstance<nb::int_>(value)) return Bounds(nb::cast<std::uint64_t>(value), blocks);
    std::vector<std::uint64_t> offsets;
    for (const nb::handle offset : value) offsets.push_back(nb::cast<std::uint64_t>(nb::int_(offset)));
    if (offsets.size() != std::size_t{blocks} + 1 || !std::is_sorted(offsets.begin(), offsets.end())) {
        throw nb::value_error("bounds must ascend, one more than there are blocks");
    }
    return Bounds(std::move(offsets));
}

struct PyProgram {
    std::shared_ptr<const Program> program;
};

PyOperation make_operation(const PyProgram& program, unsigned dtype, unsigned op, nb::handle in_bounds,
                           nb::handle out_bounds, const std::array<std::uint64_t, 6>& identity,
                           std::uint64_t at_a_time, int part, std::uint64_t call_bytes,
                           std::uint64_t divisor) {
    if (part < 0 || part > static_cast<int>(Operation::Part::other)) throw nb::value_error("no such part");
    if (!is_dtype(dtype) || !is_op(op)) throw nb::value_error("an unknown dtype or op");
    if (!supports(static_cast<DType>(dtype), static_cast<Op>(op))) {
        throw nb::type_error("this op has no meaning for this dtype");
    }
    const Program& plan = *program.program;
    Call call;
    call.collective = static_cast<std::uint8_t>(identity[0]);
    call.op = static_cast<std::uint8_t>(identity[1]);
    call.dtype = static_cast<std::uint8_t>(identity[2]);
    call.count = identity[3];
    call.root = static_cast<std::uint32_t>(identity[4]);
    call.algorithm = static_cast<std::uint32_t>(identity[5]);
    if (at_a_time > 0) {
        if (divisor != 0) throw nb::value_error("an operation in sections has no divisor of its own");
        const auto n = nb::cast<std::uint64_t>(in_bounds);
        if (nb::cast<std::uint64_t>(out_bounds) != n) throw nb::value_error("buffers of different sizes");
        return {std::make_shared<const Operation>(Operation::in_sections(
            program.program, static_cast<DType>(dtype), static_cast<Op>(op), n, at_a_time, call))};
    }
    auto made = std::make_shared<Operation>(
        program.program, static_cast<DType>(dtype), static_cast<Op>(op), to_bounds(in_bounds, plan.in_blocks),
        to_bounds(out_bounds, plan.out_blocks), call, static_cast<Operation::Part>(part));
    made->set_call_bytes(call_bytes);
    if (divisor != 0) made->set_divisor(divisor);
    return {std::move(made)};
}

}  // namespace

void add_programs(nb::module_& module) {
    nb::class_<PyProgram>(module, "Program")
        .def(
            "__init__",
            [](PyProgram* self, int rank, int size, std::pair<std::uint32_t, std::uint32_t> grid,
               const nb::sequence& scratch, const nb::sequence& steps, bool pooled, const nb::object& flat) {
                new (self) PyProgram{make_program(rank, size, grid, scratch, steps, pooled, flat)};
            },
            "rank"_a, "size"_a, "grid"_a, "scratch"_a, "steps"_a, "pooled"_a = false, "flat"_a = nb::none())
        .def_prop_ro("peers", [](const PyProgram& self) { return self.program->peers; });

    module.attr("PART_FIRST") = static_cast<int>(Operation::Part::first);
    module.attr("PART_OTHER") = static_cast<int>(Operation::Part::other);
    nb::class_<PyOperation>(module, "Operation")
        .def(
            "__init__",
            [](PyOperation* self, const PyProgram& program, unsigned dtype, unsigned op, nb::handle in_bounds,
               nb::handle out_bounds, const std::array<std::uint64_t, 6>& identity, std::uint64_t at_a_time,
               int part, std::uint64_t call_bytes, std::uint64_t divisor) {
                new (self) PyOperation(make_operation(program, dtype, op, in_bounds, out_bounds, identity,
                                                      at_a_time, part, call_bytes, divisor));
            },
            "program"_a, "dtype"_a, "op"_a, "in_bounds"_a, "out_bounds"_a, "identity"_a, "at_a_time"_a = 0,
            "part"_a = 0, "call_bytes"_a = 0, "divisor"_a = 0)
        .def_prop_ro("sections", [](const PyOperation& self) { return self.operation->sections(); })
        .def_prop_ro("memory", [](const PyOperation& self) { return self.operation->memory(); })
        .def_prop_ro("in_bytes", [](const PyOperation& self) { return self.operation->in_bytes(); })
        .def_prop_ro("out_bytes", [](const PyOperation& self) { return self.operation->out_bytes(); });
}

}  // namespace collectives
