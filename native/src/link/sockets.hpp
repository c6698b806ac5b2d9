// The few socket calls that the handshake needs, non-blocking all of them.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace collectives {

// Start connecting to "address port" (numeric, IPv6 with %scope where needed). Error(invalid) if it can't be
// parsed; an fd whose connect failed at once is returned with `error` set.
UniqueFd connect_tcp(const std::string& address, int& error);
// Connect to an abstract Unix socket.
UniqueFd connect_local(const std::string& name, int& error);
// The outcome of a connect that was in progress: 0 or an errno.
int connect_result(int fd);

UniqueFd accept_from(int listener, int& error);
void prepare_stream(int fd, bool tcp);
// Whether both ends of a TCP connection have the same address: it never leaves the machine.
bool stays_on_this_machine(int fd);
// The process that called, or listened, at the other end of a local socket, as we see it; 0 where we do not.
pid_t process_at_other_end(int fd);
// Hold at most about twice so many bytes that the peer has not taken.
void limit_send_buffer(int fd, int bytes);
// Send when there is something to send: a congestion control that paces, as BBR does, costs time where
// nothing is ever lost.
void do_not_pace(int fd);
// Take more only while less than so many bytes have not been sent for the first time.
void limit_unsent(int fd, int bytes);

// Send a short message whole, with descriptors where the socket is local; false if it did not fit or failed.
bool send_message(int fd, std::span<const std::byte> message, std::span<const int> descriptors = {});

enum class Received { some, nothing, end };
// Receive into `room`, collecting descriptors (at most two are accepted, more are closed).
Received receive_message(int fd, std::span<std::byte> room, std::size_t& got,
                         std::vector<UniqueFd>& descriptors);

}  // namespace collectives
