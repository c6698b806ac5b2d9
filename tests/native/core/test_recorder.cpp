// Records: their order, what is kept, and reading them while they are written.
#include <doctest/doctest.h>

#include <thread>

#include "core/recorder.hpp"

using namespace collectives;

namespace {

Call call_of(std::uint64_t sequence) {
    Call call;
    call.sequence = sequence;
    call.count = 3 * sequence;
    call.algorithm = static_cast<std::uint32_t>(sequence);
    return call;
}

}  // namespace

TEST_CASE("a clock that never goes back, in seconds of CLOCK_MONOTONIC") {
    const std::uint64_t before = ticks::monotonic();
    const std::uint64_t tick = ticks::now();
    const std::uint64_t after = ticks::monotonic();
    const double seconds = ticks::scale().at(tick);
    CHECK(seconds > static_cast<double>(before) * 1e-9 - 1e-6);
    CHECK(seconds < static_cast<double>(after) * 1e-9 + 1e-6);
    std::uint64_t last = 0;
    for (int i = 0; i < 1000; ++i) {
        const std::uint64_t now = ticks::now();
        REQUIRE(now >= last);
        last = now;
    }
}

TEST_CASE("an operation from queue to end") {
    Recorder recorder;
    CHECK(recorder.records().empty());
    const std::uint64_t number = recorder.add(call_of(4), {.peer = 2, .sends = true}, 10);
    CHECK(recorder.records().at(0).state == RecordState::queued);
    recorder.start(number, call_of(5), "board", 20);
    recorder.wait(number, 0, ticks::now());
    const Record waiting = recorder.records().at(0);
    CHECK(waiting.state == RecordState::started);
    CHECK(waiting.ended == 0);
    recorder.first(number, 25);
    recorder.wait(number, 7, 0);
    recorder.finish(number, "pool", 100, 200, 40);
    const Record record = recorder.records().at(0);
    CHECK(record.number == 1);
    CHECK(record.call == call_of(5));
    CHECK(record.peer == 2);
    CHECK(record.sends);
    CHECK(record.state == RecordState::done);
    CHECK(record.engine == "pool");
    CHECK(record.queued == 10);
    CHECK(record.begun == 20);
    CHECK(record.first == 25);
    CHECK(record.ended == 40);
    CHECK(record.waited == 7);
    CHECK(record.sent == 100);
    CHECK(record.received == 200);
    CHECK(record.error.empty());
}

TEST_CASE("the last thousand are kept, in order, with their errors") {
    Recorder recorder;
    for (std::uint64_t i = 1; i <= 5000; ++i) {
        const std::uint64_t number = recorder.add(call_of(i), {}, i);
        REQUIRE(number == i);
        recorder.start(number, call_of(i), "board", i);
        if (i % 100 == 0) {
            recorder.fail(number, "error " + std::to_string(i), i);
        } else {
            recorder.finish(number, "board", 0, 0, i);
        }
        if (i > 2000) recorder.fail(i - 2000, "too late to be kept", i);
    }
    const std::vector<Record> records = recorder.records();
    REQUIRE(records.size() == Recorder::kept);
    for (std::size_t i = 0; i < records.size(); ++i) {
        const std::uint64_t sequence = 4001 + i;
        REQUIRE(records[i].call == call_of(sequence));
        const bool failed = sequence % 100 == 0;
        REQUIRE((records[i].state == RecordState::failed) == failed);
        REQUIRE(records[i].error == (failed ? "error " + std::to_string(sequence) : ""));
    }
}

TEST_CASE("whoever reads meanwhile gets whole records, in order") {
    Recorder recorder;
    std::atomic<bool> done{false};
    std::thread writer([&] {
        for (std::uint64_t i = 1; i <= 200'000; ++i) {
            const std::uint64_t number = recorder.add(call_of(i), {}, i);
            recorder.start(number, call_of(i), "board", i);
            recorder.finish(number, "board", i, i, i + 1);
        }
        done = true;
    });
    bool right = true;
    while (!done) {
        std::uint64_t last = 0;
        for (const Record& record : recorder.records()) {
            right = right && record.number > last && record.call == call_of(record.number);
            if (record.state == RecordState::done) {
                right = right && record.sent == record.number && record.ended == record.number + 1;
            }
            last = record.number;
        }
    }
    writer.join();
    CHECK(right);
    CHECK(recorder.records().size() == Recorder::kept);
}
