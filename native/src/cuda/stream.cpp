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
            throw Error(ErrorKind::invalid,
                        "the stream is not one of device " + std::to_string(context.device()) +
                            "'s primary context, which has the arrays of the call: give one "
                            "that was made on this device");
        }
    }
}

bool is_capturing(StreamHandle stream, const PrimaryContext& context) {
    int status = 0;
    const Result result = driver().stream_is_capturing(stream, &status);
    if (result == error_stream_capture_implicit) {
        throw Error(ErrorKind::invalid,
                    "a stream of device " + std::to_string(context.device()) +
                        " is being captured into a graph, and the default stream waits for "
                        "it: use another stream meanwhile");
    }
    check(result, "cuStreamIsCapturing", context.device());
    if (status == capture_invalidated) {
        throw Error(
            ErrorKind::invalid,
            "the capture of the stream into a graph has failed before this call: end it, and begin again");
    }
    return status != capture_none;
}

bool is_in_capture(StreamHandle stream, const PrimaryContext& context) {
    int status = 0;
    const Result result = driver().stream_is_capturing(stream, &status);
    if (result == error_stream_capture_implicit) return false;  // the default stream, which is never captured
    check(result, "cuStreamIsCapturing", context.device());
    return status != capture_none;
}

void refuse_capture(StreamHandle stream, const PrimaryContext& context, const char* why) {
    if (is_capturing(stream, context)) {
        throw Error(ErrorKind::invalid, "the stream is being captured into a graph, " + std::string(why));
    }
}

void write_value(StreamHandle stream, Pointer address, std::uint32_t value) {
    check(driver().stream_write_value(stream, address, value, 0), "cuStreamWriteValue32");
}

void wait_value(StreamHandle stream, Pointer address, std::uint32_t value) {
    check(driver().stream_wait_value(stream, address, value, wait_greater_or_equal), "cuStreamWaitValue32");
}

void wait_equal_value(StreamHandle stream, Pointer address, std::uint32_t value) {
    check(driver().stream_wait_value(stream, address, value, wait_equal), "cuStreamWaitValue32");
}

OwnStream::OwnStream(std::shared_ptr<const PrimaryContext> context) : context_(std::move(context)) {
    const Current current(*context_);
    check(driver().stream_create(&handle_, stream_non_blocking), "cuStreamCreate", context_->device());
}

OwnStream::~OwnStream() {
    try {
        const Current current(*context_);
        driver().stream_destroy(handle_);
    } catch (const Error&) {
        return;  // the context is lost, and the stream with it
    }
}

RelaxedCapture::RelaxedCapture() : before_(capture_relaxed) {
    check(driver().exchange_capture_mode(&before_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() { driver().exchange_capture_mode(&before_); }

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
