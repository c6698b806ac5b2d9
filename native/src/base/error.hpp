// The errors of the engine: one exception type, with the kind of the Python error that it becomes.
//
// Invariant: errors are thrown only on the thread that called the engine; the progress and control threads
// catch them and pass them on as values.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/export.hpp"

namespace collectives {

enum class ErrorKind : std::uint8_t {
    peer_lost,
    op_timeout,
    desync,
    stale_epoch,
    aborted,
    config_mismatch,
    auth,
    transport_unavailable,
    invalid,      // ValueError
    interrupted,  // a Python exception is already set: a signal handler raised
};

// Which rank has found the reason of an error. Another one knows more of it, and tells that to all ranks.
enum class Finder : bool { this_rank, another_rank };

class COLLECTIVES_API Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string& message, std::vector<int> ranks = {},
          Finder finder = Finder::this_rank)
        : std::runtime_error(message), kind_(kind), finder_(finder), ranks_(std::move(ranks)) {}

    ErrorKind kind() const { return kind_; }
    Finder finder() const { return finder_; }
    const std::vector<int>& ranks() const { return ranks_; }

  private:
    ErrorKind kind_;
    Finder finder_;
    std::vector<int> ranks_;
};

// The same error, whose text begins with the rank on which it occurred.
COLLECTIVES_API Error of_rank(int rank, const Error& error);

// "rank 3", "ranks 1, 2 and 5"
COLLECTIVES_API std::string name_ranks(const std::vector<int>& ranks);

// "Connection refused" for ECONNREFUSED
COLLECTIVES_API std::string errno_text(int code);

// Throws the Error for a system call that failed for an outside reason, not for a fault of this program.
COLLECTIVES_API [[noreturn]] void throw_system(const char* call, int code);

}  // namespace collectives
