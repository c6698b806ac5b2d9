// The symbols that shared objects of other packages may use, and the version of the interface.
//
// Invariant: the library is compiled with hidden symbols. The extension exports only symbols that are marked
// with COLLECTIVES_API, and the installed headers need no others.
#pragma once

#define COLLECTIVES_API __attribute__((visibility("default")))

// Changes whenever a change of an installed header makes objects that were compiled before unusable.
#define COLLECTIVES_INTERFACE "5"

// To be used once in each shared object of another package, outside all namespaces. The loader looks for this
// text in the file before any code of the file runs.
#define COLLECTIVES_PLUGIN                                      \
    extern "C" COLLECTIVES_API const char collectives_plugin[]; \
    __attribute__((used)) const char collectives_plugin[] = COLLECTIVES_MARK;
#define COLLECTIVES_MARK "pycollectives interface " COLLECTIVES_INTERFACE
