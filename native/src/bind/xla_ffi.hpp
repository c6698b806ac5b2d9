// The part of XLA's foreign function interface that this library uses: the C structs with which XLA calls a
// handler.
//
// The interface is a stable C ABI: within major version 0 fields are only appended to structs, and every
// struct has the size that the caller knows. So these declarations fit every jaxlib, and the build needs no
// jaxlib.
//
// Invariant: a struct is read only after `fits` has checked its size; tests/native/xla_layout.cpp compares
// each offset with the header in jaxlib.
#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives::xla {

inline constexpr int major_version = 0;

struct Error;  // a type of XLA; made by Api::error_create, owned by the caller to whom it is returned

struct Extension {
    std::size_t struct_size;
    std::int32_t type;
    Extension* next;
};

inline constexpr std::int32_t metadata_extension = 1;

struct Version {
    std::size_t struct_size;
    Extension* extensions;
    int major;
    int minor;
};

enum class ErrorCode : std::int32_t { failed_precondition = 9, internal = 13 };

struct ErrorArguments {
    std::size_t struct_size;
    Extension* extensions;
    const char* message;  // copied
    ErrorCode code;
};

struct StreamArguments {
    std::size_t struct_size;
    Extension* extensions;
    void* context;
    void* stream;  // filled in by XLA: of CUDA, a CUstream
};

struct Api {
    std::size_t struct_size;
    Extension* extensions;
    Version version;
    const void* internal;
    Error* (*error_create)(ErrorArguments*);
    void* error_get_message;
    void* error_destroy;
    void* handler_register;
    Error* (*stream_get)(StreamArguments*);
};

enum class DataType : std::int32_t {
    pred = 1,
    s8 = 2,
    s16 = 3,
    s32 = 4,
    s64 = 5,
    u8 = 6,
    u16 = 7,
    u32 = 8,
    u64 = 9,
    f16 = 10,
    f32 = 11,
    f64 = 12,
    c64 = 15,
    bf16 = 16,
    token = 17,
    c128 = 18,
    f8e5m2 = 19,
    f8e4m3fn = 20,
    s4 = 21,
    u4 = 22,
    f8e4m3b11fnuz = 23,
    f8e5m2fnuz = 24,
    f8e4m3fnuz = 25,
    f8e4m3 = 28,
    f8e3m4 = 29,
    f8e8m0fnu = 33,
};

// Bytes of an element in XLA's buffers, where an integer of 4 bits has a whole byte. 0 for types that are not
// known here.
constexpr std::size_t width(DataType type) {
    switch (type) {
        case DataType::pred:
        case DataType::s4:
        case DataType::u4:
        case DataType::s8:
        case DataType::u8:
        case DataType::f8e5m2:
        case DataType::f8e4m3fn:
        case DataType::f8e4m3b11fnuz:
        case DataType::f8e5m2fnuz:
        case DataType::f8e4m3fnuz:
        case DataType::f8e4m3:
        case DataType::f8e3m4:
        case DataType::f8e8m0fnu:
            return 1;
        case DataType::s16:
        case DataType::u16:
        case DataType::f16:
        case DataType::bf16:
            return 2;
        case DataType::s32:
        case DataType::u32:
        case DataType::f32:
            return 4;
        case DataType::s64:
        case DataType::u64:
        case DataType::f64:
        case DataType::c64:
            return 8;
        case DataType::c128:
            return 16;
        default:
            return 0;
    }
}

struct Buffer {
    std::size_t struct_size;
    Extension* extensions;
    DataType dtype;
    void* data;  // may be null if there are no elements
    std::int64_t rank;
    std::int64_t* dims;
};

inline constexpr std::int32_t buffer_kind = 1;  // the only kind of operands and results

// Operands or results.
struct Values {
    std::size_t struct_size;
    Extension* extensions;
    std::int64_t size;
    std::int32_t* kinds;
    void** values;  // Buffer*
};

struct Text {
    const char* data;
    std::size_t size;
};

struct Scalar {
    DataType dtype;
    void* value;
};

inline constexpr std::int32_t scalar_kind = 3;

struct Attributes {
    std::size_t struct_size;
    Extension* extensions;
    std::int64_t size;
    std::int32_t* kinds;
    Text** names;
    void** values;  // Scalar* if the kind is scalar_kind
};

enum class Stage : std::int32_t { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

struct CallFrame {
    std::size_t struct_size;
    Extension* extensions;
    const Api* api;
    void* context;
    Stage stage;
    Values operands;
    Values results;
    Attributes attributes;
};

struct Metadata {
    std::size_t struct_size;
    Version version;  // filled in by the handler
    std::uint32_t traits;
};

struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

// The size that XLA counts: up to the end of the last field, without padding.
template <typename Struct>
inline constexpr std::size_t counted_size = sizeof(Struct);
template <>
inline constexpr std::size_t counted_size<Metadata> = offsetof(Metadata, traits) + sizeof(std::uint32_t);

// Whether the caller's struct is at least as long as its declaration here.
template <typename Struct>
constexpr bool fits(const Struct& given) {
    return given.struct_size >= counted_size<Struct>;
}

}  // namespace collectives::xla
