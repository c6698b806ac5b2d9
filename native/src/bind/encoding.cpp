// Encoding of float32 arrays for a wire format, and decoding.
//
// Invariant: an array is checked completely before anything is written; the kernels run without the GIL.
#include "reduce/encoding.hpp"

#include <nanobind/nanobind.h>

#include "bind/common.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace collectives {

namespace {

struct Floats {
    float* data;
    std::size_t n;
};

Floats floats(nb::handle object, bool written) {
    if (PyObject_TypeCheck(object.ptr(), array_type()) == 0) throw nb::type_error("not a NumPy array");
    auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (PyArray_TYPE(array) != NPY_FLOAT32) throw nb::type_error("an array is not float32");
    const int flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    if (!PyArray_CHKFLAGS(array, flags)) throw nb::value_error("a float32 array has gaps or is read-only");
    return {static_cast<float*>(PyArray_DATA(array)), elements_of(array)};
}

void encode_array(nb::handle dst, nb::handle source, unsigned dtype, float factor) {
    const EncodeFn encode = is_dtype(dtype) ? encoder(static_cast<DType>(dtype)) : nullptr;
    if (encode == nullptr) throw nb::value_error("not an encoded dtype");
    const Floats from = floats(source, false);
    const std::size_t unit = size_of(static_cast<DType>(dtype));
    const std::size_t bytes = encoded_elements(static_cast<DType>(dtype), from.n) * unit;
    std::byte* const to = memory(dst, bytes, unit, "the encoded array");
    if (bytes == 0) return;
    const nb::gil_scoped_release nogil;
    encode(to, from.data, from.n, factor);
}

void decode_array(nb::handle dst, nb::handle source, unsigned dtype, float factor) {
    const DecodeFn decode = is_dtype(dtype) ? decoder(static_cast<DType>(dtype)) : nullptr;
    if (decode == nullptr) throw nb::value_error("not an encoded dtype");
    const Floats to = floats(dst, true);
    const std::size_t unit = size_of(static_cast<DType>(dtype));
    const std::size_t bytes = encoded_elements(static_cast<DType>(dtype), to.n) * unit;
    const std::byte* const from = memory(source, bytes, unit, "the encoded array");
    if (bytes == 0) return;
    const nb::gil_scoped_release nogil;
    decode(to.data, from, to.n, factor);
}

}  // namespace

void add_encoding(nb::module_& module) {
    module.attr("BLOCK_NUMBERS") = block_numbers;
    module.def("encode", &encode_array, "dst"_a, "source"_a, "dtype"_a, "factor"_a = 1.0f);
    module.def("decode", &decode_array, "dst"_a, "source"_a, "dtype"_a, "factor"_a = 1.0f);
}

}  // namespace collectives
