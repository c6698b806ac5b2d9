#include "nccl/piece.hpp"

#include "cuda/device.hpp"

namespace collectives::nccl {

namespace {

// Between `group_start` and the end of the scope, calls belong to a group, which may be inside another one.
class GroupOfCalls {
  public:
    GroupOfCalls(const Api& api, bool several) : api_(api), several_(several) {
        if (several_) first_ = api_.group_start();
    }
    GroupOfCalls(const GroupOfCalls&) = delete;
    GroupOfCalls& operator=(const GroupOfCalls&) = delete;

    bool failed() const { return first_ != success && first_ != in_progress; }
    void note(Result result) {
        if (!failed() && result != success) first_ = result;
    }
    // Call it last. A failed group has to end as well.
    Result end() {
        if (several_) note(api_.group_end());
        return first_;
    }

  private:
    const Api& api_;
    bool several_;
    Result first_ = success;
};

class Caller {
  public:
    Caller(const Communicator::Member& member, const Api& api, Handle handle, Stream stream)
        : member_(member), api_(api), handle_(handle), stream_(stream) {}

    Result call(const Piece& piece) const {
        const void* const in = pointer(piece.in);
        void* const out = pointer(piece.out);
        const std::uint64_t bytes = piece.count * piece.unit;
        const std::uint64_t n = piece.count * piece.elements.each;
        const DataType type = piece.elements.type;
        const Reduction op = piece.elements.op;
        switch (piece.kind) {
            case Kind::allreduce:
                return api_.all_reduce(in, out, n, type, op, handle_, stream_);
            case Kind::reduce:
                return api_.reduce(in, out, n, type, op, piece.peer, handle_, stream_);
            case Kind::reduce_scatter:
                return api_.reduce_scatter(in, out, n, type, op, handle_, stream_);
            case Kind::broadcast:
                return api_.broadcast(in, out, bytes, type_uint8, piece.peer, handle_, stream_);
            case Kind::allgather:
                return api_.all_gather(in, out, bytes, type_uint8, handle_, stream_);
            case Kind::gather:
                if (api_.gather == nullptr) return by_messages(piece);
                return api_.gather(in, out, bytes, type_uint8, piece.peer, handle_, stream_);
            case Kind::scatter:
                if (api_.scatter == nullptr) return by_messages(piece);
                return api_.scatter(in, out, bytes, type_uint8, piece.peer, handle_, stream_);
            case Kind::alltoall:
                if (api_.all_to_all == nullptr) return by_messages(piece);
                return api_.all_to_all(in, out, bytes, type_uint8, handle_, stream_);
            case Kind::send:
                return api_.send(in, bytes, type_uint8, piece.peer, handle_, stream_);
            case Kind::recv:
                return api_.recv(out, bytes, type_uint8, piece.peer, handle_, stream_);
        }
        return invalid_argument;
    }

  private:
    static void* pointer(cuda::Pointer address) { return reinterpret_cast<void*>(address); }

    Result by_messages(const Piece& piece) const {
        const std::uint64_t bytes = piece.count * piece.unit;
        const bool is_root = member_.rank == piece.peer;
        const bool is_all = piece.kind == Kind::alltoall;
        const bool gathers = piece.kind == Kind::gather;
        GroupOfCalls group(api_, true);
        for (int peer = 0; peer < member_.size && !group.failed(); ++peer) {
            const std::uint64_t part = static_cast<std::uint64_t>(peer) * bytes;
            if (is_all || (gathers ? peer == piece.peer : is_root)) {
                const cuda::Pointer from = gathers ? piece.in : piece.in + part;
                group.note(api_.send(pointer(from), bytes, type_uint8, peer, handle_, stream_));
            }
            if (is_all || (gathers ? is_root : peer == piece.peer)) {
                const cuda::Pointer to = piece.kind == Kind::scatter ? piece.out : piece.out + part;
                group.note(api_.recv(pointer(to), bytes, type_uint8, peer, handle_, stream_));
            }
        }
        return group.end();
    }

    const Communicator::Member& member_;
    const Api& api_;
    Handle handle_;
    Stream stream_;
};

}  // namespace

void check(const Piece& piece, const Communicator::Member& member) {
    const cuda::Sizes sizes =
        cuda::sizes_of(piece.kind, piece.count * piece.unit, member.size, member.rank == piece.peer);
    // An address that is not the device's would make the device unusable for this process.
    cuda::check_on_device(piece.in, sizes.in, member.device, "x");
    cuda::check_on_device(piece.out, sizes.out, member.device, "out");
}

Result run(std::span<const Piece> pieces, const Communicator::Member& member, const Api& api, Handle handle,
           Stream stream) {
    const Caller caller(member, api, handle, stream);
    GroupOfCalls group(api, pieces.size() > 1);
    for (const Piece& piece : pieces) {
        if (group.failed()) break;
        group.note(caller.call(piece));
    }
    return group.end();
}

}  // namespace collectives::nccl
