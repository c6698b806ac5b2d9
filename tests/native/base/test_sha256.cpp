// Published vectors: NIST's examples for FIPS 180-4, and RFC 4231 for HMAC.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/sha256.hpp"

using namespace collectives;

namespace {

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string hex(std::span<const std::byte> data) {
    std::string text;
    for (const std::byte b : data) {
        text += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
        text += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
    }
    return text;
}

std::string hash(const std::string& message) { return hex(sha256(bytes(message))); }

std::string code(const std::string& key, const std::string& message) {
    return hex(hmac_sha256(bytes(key), bytes(message)));
}

}  // namespace

TEST_CASE("SHA-256: NIST examples") {
    CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
               "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu") ==
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    CHECK(hash(std::string(1000000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256: around the length at which the padding needs a block of its own") {
    CHECK(hash(std::string(55, 'a')) == "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    CHECK(hash(std::string(56, 'a')) == "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
    CHECK(hash(std::string(63, 'a')) == "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
    CHECK(hash(std::string(64, 'a')) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST_CASE("SHA-256: a message in parts hashes like the whole") {
    std::string message;
    for (int i = 0; i < 300; ++i) message += static_cast<char>(i * 31);
    for (std::size_t length = 0; length <= message.size(); ++length) {
        const std::string whole = message.substr(0, length);
        for (const std::size_t cut : {length / 3, length / 2, length - length / 5}) {
            Sha256 parts;
            parts.update(bytes(whole.substr(0, cut))).update(bytes(whole.substr(cut)));
            REQUIRE(hex(parts.finish()) == hash(whole));
        }
    }
}

TEST_CASE("HMAC-SHA256: RFC 4231") {
    CHECK(code(std::string(20, '\x0b'), "Hi There") ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(code("Jefe", "what do ya want for nothing?") ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(code(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
          "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    std::string counting;
    for (char c = 1; c <= 25; ++c) counting += c;
    CHECK(code(counting, std::string(50, '\xcd')) ==
          "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    CHECK(code(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32) ==
          "a3b6167473100ee06e0c796c2955552b");
    CHECK(code(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    CHECK(code(std::string(131, '\xaa'),
               "This is a test using a larger than block-size key and a larger than block-size data. "
               "The key needs to be hashed before being used by the HMAC algorithm.") ==
          "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("HMAC-SHA256: a message in parts") {
    HmacSha256 parts(bytes("Jefe"));
    parts.update(bytes("what do ya want ")).update(bytes("")).update(bytes("for nothing?"));
    CHECK(hex(parts.finish()) == code("Jefe", "what do ya want for nothing?"));
}

TEST_CASE("equal compares length and every byte") {
    const std::string a = "0123456789abcdef";
    CHECK(equal(bytes(a), bytes(a)));
    CHECK(equal(bytes(""), bytes("")));
    CHECK_FALSE(equal(bytes(a), bytes(a.substr(1))));
    CHECK_FALSE(equal(bytes(a), bytes("")));
    for (std::size_t i = 0; i < a.size(); ++i)
        for (int bit = 0; bit < 8; ++bit) {
            std::string b = a;
            b[i] = static_cast<char>(b[i] ^ (1 << bit));
            CHECK_FALSE(equal(bytes(a), bytes(b)));
        }
}
