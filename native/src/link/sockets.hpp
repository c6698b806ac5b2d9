// The socket calls that the handshake needs. None of them blocks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace collectives {

// Start connecting to "address port" (numeric, IPv6 with %scope if needed). Throws Error(invalid) if the
// address is malformed; an fd whose connect failed at once is returned with `error` set.
UniqueFd connect_tcp(const std::string& address, int& error);
// Connect to an abstract Unix socket.
UniqueFd connect_local(const std::string& name, int& error);
// The outcome of a connect that was in progress: 0 or an errno.
int connect_result(int fd);

UniqueFd accept_from(int listener, int& error);
// `silence`: when the kernel ends a connection that carries nothing, if the other host does not answer; 0:
// its default, two hours.
void prepare_stream(int fd, bool tcp, std::chrono::nanoseconds silence = {});
// Whether the other host has acknowledged nothing for `silence`, although the kernel has sent something again
// and again. A peer that reads nothing is not meant: its kernel answers.
bool is_unanswered(int fd, std::chrono::nanoseconds silence);
// Set the events that `epoll` reports of a descriptor, with that id. `operation`: EPOLL_CTL_ADD, _MOD or
// _DEL.
void set_interest(int epoll, int fd, std::uint64_t id, std::uint32_t events, int operation);
// Whether both ends of a TCP connection have the same address, so that its data never leaves the machine.
bool stays_on_this_machine(int fd);
// The pid, in our pid namespace, of the process at the other end of a local socket; 0 if it is not visible.
pid_t process_at_other_end(int fd);
// Limit the bytes in the send buffer, which the peer has not received, to about twice `bytes`.
void limit_send_buffer(int fd, int bytes);
// Choose a congestion control that sends without pauses. One that paces, as BBR does, only costs time if no
// packet is ever lost.
void do_not_pace(int fd);
// Let the socket accept more only while fewer than `bytes` bytes have never been sent.
void limit_unsent(int fd, int bytes);

// Send a short message at once, over a local socket also with descriptors; false if it did not fit or failed.
bool send_message(int fd, std::span<const std::byte> message, std::span<const int> descriptors = {});

enum class Received { some, nothing, end };
// Receive into `room`, collecting descriptors (at most two are accepted, more are closed).
Received receive_message(int fd, std::span<std::byte> room, std::size_t& got,
                         std::vector<UniqueFd>& descriptors);

}  // namespace collectives
