// What the kernels are told. Compiled into this library, and by NVRTC into the kernels.
//
// Invariant: it includes nothing, since NVRTC has no headers of a host. Its layout is the same for both.
#pragma once

namespace collectives::cuda {

// The parameters of a kernel have at most 4 KiB.
inline constexpr unsigned most_ranks = 128;

enum class Form : unsigned {
    reduce,       // every output gets the reduction of all inputs
    scatter,      // output r gets part r of that reduction
    concatenate,  // every output gets all inputs, one after another
    broadcast,    // every other output gets the input of the root
    divide,       // output r gets part r of the root's input
    transpose,    // part s of output r is part r of input s
};

// Addresses as the process that launches the kernel sees them; 0 where a rank has no input, or gets no
// output.
struct KernelArguments {
    unsigned long long in[most_ranks];
    unsigned long long out[most_ranks];
    // A word in the memory of each rank: the rank gives its output up by changing it. 0: it never does.
    unsigned long long epoch[most_ranks];
    unsigned long long count;  // elements in a part; bytes, where elements are only moved
    unsigned size;
    unsigned root;
    unsigned wanted;  // what all epochs are as long as all ranks go on
    unsigned leader;
    unsigned divisor;  // of an average
    Form form;
    unsigned op;  // the code of the Op
};

}  // namespace collectives::cuda
