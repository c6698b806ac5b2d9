// Started in place of Python: has a process forked for this command line, and ends as that process does.
//
// The socket of the server is beside this program. The server reads from /proc what it needs to know of this
// process, and gets its open files. If it answers that the command line is none of those that it can run, or
// that the environment does not fit, this process becomes the real Python, whose path is compiled in.
//
// Invariant: the forked process does not outlive this one. Signals to this process reach it, unless this
// process leads a process group: then both are in that group, and what reaches one reaches the other.

#include <dirent.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t most_files = 200;
constexpr int largest_number = 999;  // of an open file
constexpr std::array forwarded{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// What the server is told: the signals that were blocked, a bit each, and the numbers of the files that it
// gets.
struct Message {
    std::uint64_t blocked = 0;
    std::array<std::int32_t, most_files> numbers{};
};

struct Files {
    std::array<std::int32_t, most_files> numbers{};
    std::size_t count = 0;
};

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    _exit(1);
}

[[noreturn]] void become_python(char** arguments, const sigset_t& blocked) {
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
    char path[] = WARM_PYTHON;
    arguments[0] = path;
    execv(path, arguments);
    fail(path);
}

// False if there are more than can be passed.
bool list(Files& files) {
    DIR* const folder = opendir("/proc/self/fd");
    if (folder == nullptr) fail("/proc/self/fd");
    bool all = true;
    while (const dirent* const entry = readdir(folder)) {
        const int number = std::atoi(entry->d_name);
        if (entry->d_name[0] == '.' || number == dirfd(folder)) continue;
        all = files.count < most_files && number <= largest_number;
        if (!all) break;
        files.numbers[files.count++] = number;
    }
    closedir(folder);
    return all;
}

int connect_beside() {
    std::array<char, 4096> path{};
    const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    char* const slash = length < 0 ? nullptr : std::strrchr(path.data(), '/');
    if (slash == nullptr) fail("/proc/self/exe");
    *slash = '\0';
    const int written = std::snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", path.data());
    if (written < 0 || static_cast<std::size_t>(written) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        fail(path.data());
    }
    const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        fail(address.sun_path);
    }
    return server;
}

void send(int server, const Files& files, const sigset_t& blocked) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof files.numbers)> control{};
    Message content{0, files.numbers};
    for (int number = 1; number <= 64; ++number) {
        if (sigismember(&blocked, number) == 1) content.blocked |= std::uint64_t{1} << (number - 1);
    }
    iovec bytes{&content, sizeof content};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    if (files.count > 0) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(files.count * sizeof(int));
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(files.count * sizeof(int));
        std::memcpy(CMSG_DATA(header), files.numbers.data(), files.count * sizeof(int));
    }
    if (sendmsg(server, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof content)) fail("sendmsg");
}

// An answer of the server; ends this process if the server has ended.
std::int32_t answer(int server) {
    std::int32_t value = 0;
    ssize_t got = 0;
    do {
        got = recv(server, &value, sizeof value, MSG_WAITALL);
    } while (got < 0 && errno == EINTR);
    if (got != static_cast<ssize_t>(sizeof value)) _exit(1);
    return value;
}

// Until the server has something to say.
void forward(int server, pid_t process, int signals) {
    const bool both_get_them = getpgrp() == getpid() && getpgid(process) == getpgrp();
    std::array<pollfd, 2> sources{{{server, POLLIN, 0}, {signals, POLLIN, 0}}};
    while (true) {
        if (poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR) fail("poll");
        if (sources[1].revents != 0) {
            signalfd_siginfo got{};
            if (read(signals, &got, sizeof got) == static_cast<ssize_t>(sizeof got) && !both_get_them) {
                kill(process, static_cast<int>(got.ssi_signo));
            }
        } else if (sources[0].revents != 0) {
            return;
        }
    }
}

[[noreturn]] void end_as(std::int32_t status) {
    if (status < 0) {
        const int number = -status;
        prctl(PR_SET_DUMPABLE, 0);  // one core file is enough
        std::signal(number, SIG_DFL);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, number);
        sigprocmask(SIG_UNBLOCK, &set, nullptr);
        raise(number);
    }
    _exit(status);
}

}  // namespace

int main(int, char** arguments) {
    Files files;
    sigset_t set;
    sigset_t blocked;
    sigemptyset(&set);
    for (const int number : forwarded) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, &blocked);
    if (!list(files)) become_python(arguments, blocked);
    const int server = connect_beside();
    send(server, files, blocked);
    const std::int32_t process = answer(server);
    if (process == 0) {
        close(server);
        become_python(arguments, blocked);
    }
    for (std::size_t at = 0; at < files.count; ++at)
        close(files.numbers[at]);  // who reads them sees the rank's end
    forward(server, process, signalfd(-1, &set, SFD_CLOEXEC));
    end_as(answer(server));
}
