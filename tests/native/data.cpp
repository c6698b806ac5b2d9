#include "data.hpp"

#include <random>

namespace collectives::testing {

namespace {

void add_values(int rank, Floats& data) {
    for (std::size_t i = 0; i < data.size(); ++i)
        data[i] += static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101);
}

}  // namespace

Floats values(int rank, std::size_t n) {
    Floats data(n);
    add_values(rank, data);
    return data;
}

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
    std::vector<std::byte> data(n);
    std::mt19937 random(seed);
    for (std::byte& b : data) b = static_cast<std::byte>(random());
    return data;
}

Floats total(int size, std::size_t n, float times, int first) {
    Floats sum(n);
    for (int rank = first; rank < first + size; ++rank) add_values(rank, sum);
    for (float& value : sum) value *= times;
    return sum;
}

}  // namespace collectives::testing
