// What shared objects of other packages may use of this library, and which version of it they were built for.
//
// Invariant: the library is compiled with hidden symbols. Those marked here, and no others, are exported from
// the extension, and every header that is installed declares nothing else that needs one.
#pragma once

#define COLLECTIVES_API __attribute__((visibility("default")))

// Changes with every change of an installed header after which objects that were compiled before do not fit.
#define COLLECTIVES_INTERFACE "1"

// Once in each shared object of another package, outside all namespaces. The loader looks for this text in
// the file before any of its code runs.
#define COLLECTIVES_PLUGIN                                      \
    extern "C" COLLECTIVES_API const char collectives_plugin[]; \
    __attribute__((used)) const char collectives_plugin[] = COLLECTIVES_MARK;
#define COLLECTIVES_MARK "pycollectives interface " COLLECTIVES_INTERFACE
