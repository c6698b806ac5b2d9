#include "cuda/stream.hpp"

#include "base/error.hpp"
#include "cuda/driver.hpp"

namespace collectives::cuda {

void check_stream(StreamHandle stream, const PrimaryContext& context) {
    const Api& api = driver();
    const bool is_predefined = stream == nullptr || stream == legacy_stream || stream == per_thread_stream;
    if (!is_predefined) {
        Context owner = nullptr;
        check(api.stream_get_context(stream, &owner), "cuStreamGetCtx", context.device());
        if (owner != context.handle()) {
            throw Error(ErrorKind::invalid, "the stream is not one of device " +
                                                std::to_string(context.device()) +
                                                "'s primary context, which has the arrays of the call");
        }
    }
    int status = 0;
    check(api.stream_is_capturing(stream, &status), "cuStreamIsCapturing", context.device());
    if (status != 0) {
        throw Error(
            ErrorKind::invalid,
            "the stream is being captured into a graph, which is not supported yet: make the call outside "
            "of the capture");
    }
}

void write_value(StreamHandle stream, Pointer address, std::uint32_t value) {
    check(driver().stream_write_value(stream, address, value, 0), "cuStreamWriteValue32");
}

void wait_value(StreamHandle stream, Pointer address, std::uint32_t value) {
    check(driver().stream_wait_value(stream, address, value, wait_greater_or_equal), "cuStreamWaitValue32");
}

Event::Event() { check(driver().event_create(&handle_, event_disable_timing), "cuEventCreate"); }

Event::~Event() { driver().event_destroy(handle_); }

void Event::record(StreamHandle stream) { check(driver().event_record(handle_, stream), "cuEventRecord"); }

void Event::make_wait(StreamHandle stream) const {
    check(driver().stream_wait_event(stream, handle_, 0), "cuStreamWaitEvent");
}

void order(StreamHandle earlier, StreamHandle later) {
    if (earlier == later) return;
    Event event;  // the driver keeps what it needs of it until the wait is over
    event.record(earlier);
    event.make_wait(later);
}

}  // namespace collectives::cuda
