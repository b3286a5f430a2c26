!x = tensor<?x8x?xf32, #dhlo.shape<["s0", "8", "2*s1 + 1"]>>
!y = tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>>
module attributes {dhlo.symbols = {s0 = [1, 64], s1 = [0, 9223372036854775807], s2 = [0, 9]}, dhlo.names = {s0 = "batch"}} {
  // Symbols come from dims that are just them, else from what can be solved; all other dims are compared. A number has its range where
  // it is read.
  func.func @main(%x: !x {dhlo.name = "x"}, %y: !y {dhlo.name = "y"}, %n: tensor<i64> {dhlo.name = "n"}) -> !y {
    "dhlo.item"(%n) {symbol = "s2"} : (tensor<i64>) -> ()
    %z = "dhlo.neg"(%y) : (!y) -> !y
    return %z : !y
  }
}
