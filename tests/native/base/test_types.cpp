// The codes and the table of what goes with what.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "base/types.hpp"

using namespace collectives;

namespace {

std::set<std::string> operations(DType dtype) {
    std::set<std::string> names;
    for (unsigned o = 0; is_op(o); ++o)
        if (supports(dtype, static_cast<Op>(o))) names.emplace(name(static_cast<Op>(o)));
    return names;
}

}  // namespace

TEST_CASE("codes, names and sizes") {
    CHECK(name(DType::float16) == "float16");
    CHECK(name(DType::boolean) == "bool");
    CHECK(static_cast<unsigned>(DType::complex128) == 14);
    CHECK(name(DType::complex128) == "complex128");
    CHECK(name(Op::lxor) == "lxor");
    CHECK(static_cast<unsigned>(Op::lxor) == 10);
    CHECK(static_cast<unsigned>(DType::int8_blocks) == 15);
    CHECK(name(DType::float8_blocks) == "float8_blocks");
    CHECK(size_of(DType::int8_blocks) == 260);
    CHECK(is_dtype(16));
    CHECK_FALSE(is_dtype(17));
    CHECK(is_op(10));
    CHECK_FALSE(is_op(11));
    for (unsigned d = 0; is_dtype(d); ++d) {
        const auto dtype = static_cast<DType>(d);
        if (is_blocks(dtype)) continue;
        const std::string text(name(dtype));
        const auto digits = text.find_first_of("0123456789");
        const std::size_t size = digits == std::string::npos ? 1 : std::stoul(text.substr(digits)) / 8;
        CHECK_MESSAGE(size_of(dtype) == size, text);
    }
}

TEST_CASE("what has a meaning") {
    const std::set<std::string> real{"sum", "prod", "min", "max", "avg"};
    const std::set<std::string> truth{"sum", "prod", "min",  "max", "band",
                                      "bor", "bxor", "land", "lor", "lxor"};
    std::set<std::string> whole = truth;
    whole.insert("avg");
    const std::set<std::string> complex{"sum", "prod", "avg"};
    for (const DType d : {DType::float16, DType::bfloat16, DType::float32, DType::float64})
        CHECK(operations(d) == real);
    for (const DType d : {DType::int8, DType::int64, DType::uint8, DType::uint64})
        CHECK(operations(d) == whole);
    CHECK(operations(DType::boolean) == truth);
    for (const DType d : {DType::complex64, DType::complex128}) CHECK(operations(d) == complex);
    const std::set<std::string> blocks{"sum", "avg"};
    for (const DType d : {DType::int8_blocks, DType::float8_blocks}) CHECK(operations(d) == blocks);
}
