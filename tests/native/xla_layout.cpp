// Compares xla_ffi.hpp with the header that comes with jaxlib. It only has to compile: test_xla_layout.py
// does that.
#include <cstddef>

#include "bind/xla_ffi.hpp"
#include "xla/ffi/api/c_api.h"

namespace ours = collectives::xla;

#define SAME_PLACE(our_struct, our_field, its_struct, its_field)                             \
    static_assert(offsetof(ours::our_struct, our_field) == offsetof(its_struct, its_field)); \
    static_assert(sizeof(ours::our_struct::our_field) == sizeof(its_struct::its_field))
#define SAME_VALUE(our_value, its_value) \
    static_assert(static_cast<int>(our_value) == static_cast<int>(its_value))
// A caller whose structs are as long as this header says passes the check at run time.
#define LONG_ENOUGH(our_struct, its_struct) \
    static_assert(ours::counted_size<ours::our_struct> <= std::size_t{its_struct##_STRUCT_SIZE})

SAME_VALUE(ours::major_version, XLA_FFI_API_MAJOR);

SAME_PLACE(Extension, struct_size, XLA_FFI_Extension_Base, struct_size);
SAME_PLACE(Extension, type, XLA_FFI_Extension_Base, type);
SAME_PLACE(Extension, next, XLA_FFI_Extension_Base, next);
SAME_VALUE(ours::metadata_extension, XLA_FFI_Extension_Metadata);

SAME_PLACE(Version, struct_size, XLA_FFI_Api_Version, struct_size);
SAME_PLACE(Version, extensions, XLA_FFI_Api_Version, extension_start);
SAME_PLACE(Version, major, XLA_FFI_Api_Version, major_version);
SAME_PLACE(Version, minor, XLA_FFI_Api_Version, minor_version);

SAME_PLACE(ErrorArguments, message, XLA_FFI_Error_Create_Args, message);
SAME_PLACE(ErrorArguments, code, XLA_FFI_Error_Create_Args, errc);
static_assert(sizeof(ours::ErrorArguments) >= std::size_t{XLA_FFI_Error_Create_Args_STRUCT_SIZE});
SAME_VALUE(ours::ErrorCode::failed_precondition, XLA_FFI_Error_Code_FAILED_PRECONDITION);
SAME_VALUE(ours::ErrorCode::internal, XLA_FFI_Error_Code_INTERNAL);

SAME_PLACE(Api, struct_size, XLA_FFI_Api, struct_size);
SAME_PLACE(Api, version, XLA_FFI_Api, api_version);
SAME_PLACE(Api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_PLACE(Api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
LONG_ENOUGH(Api, XLA_FFI_Api);

SAME_PLACE(StreamArguments, context, XLA_FFI_Stream_Get_Args, ctx);
SAME_PLACE(StreamArguments, stream, XLA_FFI_Stream_Get_Args, stream);
static_assert(sizeof(ours::StreamArguments) >= std::size_t{XLA_FFI_Stream_Get_Args_STRUCT_SIZE});

SAME_PLACE(Buffer, struct_size, XLA_FFI_Buffer, struct_size);
SAME_PLACE(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME_PLACE(Buffer, data, XLA_FFI_Buffer, data);
SAME_PLACE(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_PLACE(Buffer, dims, XLA_FFI_Buffer, dims);
LONG_ENOUGH(Buffer, XLA_FFI_Buffer);
SAME_VALUE(ours::buffer_kind, XLA_FFI_ArgType_BUFFER);
SAME_VALUE(ours::buffer_kind, XLA_FFI_RetType_BUFFER);

SAME_PLACE(Values, size, XLA_FFI_Args, size);
SAME_PLACE(Values, kinds, XLA_FFI_Args, types);
SAME_PLACE(Values, values, XLA_FFI_Args, args);
LONG_ENOUGH(Values, XLA_FFI_Args);
SAME_PLACE(Values, size, XLA_FFI_Rets, size);
SAME_PLACE(Values, kinds, XLA_FFI_Rets, types);
SAME_PLACE(Values, values, XLA_FFI_Rets, rets);
LONG_ENOUGH(Values, XLA_FFI_Rets);

SAME_PLACE(Text, data, XLA_FFI_ByteSpan, ptr);
SAME_PLACE(Text, size, XLA_FFI_ByteSpan, len);
SAME_PLACE(Scalar, dtype, XLA_FFI_Scalar, dtype);
SAME_PLACE(Scalar, value, XLA_FFI_Scalar, value);
SAME_VALUE(ours::scalar_kind, XLA_FFI_AttrType_SCALAR);

SAME_PLACE(Attributes, size, XLA_FFI_Attrs, size);
SAME_PLACE(Attributes, kinds, XLA_FFI_Attrs, types);
SAME_PLACE(Attributes, names, XLA_FFI_Attrs, names);
SAME_PLACE(Attributes, values, XLA_FFI_Attrs, attrs);
LONG_ENOUGH(Attributes, XLA_FFI_Attrs);

SAME_PLACE(CallFrame, struct_size, XLA_FFI_CallFrame, struct_size);
SAME_PLACE(CallFrame, extensions, XLA_FFI_CallFrame, extension_start);
SAME_PLACE(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_PLACE(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_PLACE(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_PLACE(CallFrame, operands, XLA_FFI_CallFrame, args);
SAME_PLACE(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME_PLACE(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
LONG_ENOUGH(CallFrame, XLA_FFI_CallFrame);
SAME_VALUE(ours::Stage::instantiate, XLA_FFI_ExecutionStage_INSTANTIATE);
SAME_VALUE(ours::Stage::prepare, XLA_FFI_ExecutionStage_PREPARE);
SAME_VALUE(ours::Stage::initialize, XLA_FFI_ExecutionStage_INITIALIZE);
SAME_VALUE(ours::Stage::execute, XLA_FFI_ExecutionStage_EXECUTE);

SAME_PLACE(Metadata, struct_size, XLA_FFI_Metadata, struct_size);
SAME_PLACE(Metadata, version, XLA_FFI_Metadata, api_version);
SAME_PLACE(Metadata, traits, XLA_FFI_Metadata, traits);
LONG_ENOUGH(Metadata, XLA_FFI_Metadata);
SAME_PLACE(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);

SAME_VALUE(ours::DataType::pred, XLA_FFI_DataType_PRED);
SAME_VALUE(ours::DataType::s8, XLA_FFI_DataType_S8);
SAME_VALUE(ours::DataType::s16, XLA_FFI_DataType_S16);
SAME_VALUE(ours::DataType::s32, XLA_FFI_DataType_S32);
SAME_VALUE(ours::DataType::s64, XLA_FFI_DataType_S64);
SAME_VALUE(ours::DataType::u8, XLA_FFI_DataType_U8);
SAME_VALUE(ours::DataType::u16, XLA_FFI_DataType_U16);
SAME_VALUE(ours::DataType::u32, XLA_FFI_DataType_U32);
SAME_VALUE(ours::DataType::u64, XLA_FFI_DataType_U64);
SAME_VALUE(ours::DataType::f16, XLA_FFI_DataType_F16);
SAME_VALUE(ours::DataType::f32, XLA_FFI_DataType_F32);
SAME_VALUE(ours::DataType::f64, XLA_FFI_DataType_F64);
SAME_VALUE(ours::DataType::bf16, XLA_FFI_DataType_BF16);
SAME_VALUE(ours::DataType::c64, XLA_FFI_DataType_C64);
SAME_VALUE(ours::DataType::c128, XLA_FFI_DataType_C128);
SAME_VALUE(ours::DataType::token, XLA_FFI_DataType_TOKEN);
SAME_VALUE(ours::DataType::f8e5m2, XLA_FFI_DataType_F8E5M2);
SAME_VALUE(ours::DataType::f8e4m3fn, XLA_FFI_DataType_F8E4M3FN);
SAME_VALUE(ours::DataType::s4, XLA_FFI_DataType_S4);
SAME_VALUE(ours::DataType::u4, XLA_FFI_DataType_U4);
SAME_VALUE(ours::DataType::f8e4m3b11fnuz, XLA_FFI_DataType_F8E4M3B11FNUZ);
SAME_VALUE(ours::DataType::f8e5m2fnuz, XLA_FFI_DataType_F8E5M2FNUZ);
SAME_VALUE(ours::DataType::f8e4m3fnuz, XLA_FFI_DataType_F8E4M3FNUZ);
SAME_VALUE(ours::DataType::f8e4m3, XLA_FFI_DataType_F8E4M3);
SAME_VALUE(ours::DataType::f8e3m4, XLA_FFI_DataType_F8E3M4);
SAME_VALUE(ours::DataType::f8e8m0fnu, XLA_FFI_DataType_F8E8M0FNU);
