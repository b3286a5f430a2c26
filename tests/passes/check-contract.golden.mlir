module attributes {dhlo.names = {s0 = "batch"}, dhlo.symbols = {s0 = [1, 64], s1 = [0, 9223372036854775807], s2 = [0, 9]}} {
  func.func @main(%arg0: tensor<?x8x?xf32, #dhlo.shape<["s0", "8", "2*s1 + 1"]>> {dhlo.name = "x"}, %arg1: tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>> {dhlo.name = "y"}, %arg2: tensor<i64> {dhlo.name = "n"}) -> tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>> {
    "dhlo.check_type"(%arg0) {input = 0 : i64, name_ = "x"} : (tensor<?x8x?xf32, #dhlo.shape<["s0", "8", "2*s1 + 1"]>>) -> ()
    "dhlo.check_type"(%arg1) {input = 1 : i64, name_ = "y"} : (tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>>) -> ()
    "dhlo.check_type"(%arg2) {input = 2 : i64, name_ = "n"} : (tensor<i64>) -> ()
    "dhlo.size"(%arg0) {dim = 0 : i64, symbol = "dim0_0"} : (tensor<?x8x?xf32, #dhlo.shape<["s0", "8", "2*s1 + 1"]>>) -> ()
    "dhlo.size"(%arg0) {dim = 1 : i64, symbol = "dim0_1"} : (tensor<?x8x?xf32, #dhlo.shape<["s0", "8", "2*s1 + 1"]>>) -> ()
    "dhlo.size"(%arg0) {dim = 2 : i64, symbol = "dim0_2"} : (tensor<?x8x?xf32, #dhlo.shape<["s0", "8", "2*s1 + 1"]>>) -> ()
    "dhlo.size"(%arg1) {dim = 0 : i64, symbol = "dim1_0"} : (tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>>) -> ()
    "dhlo.size"(%arg1) {dim = 1 : i64, symbol = "dim1_1"} : (tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>>) -> ()
    "dhlo.solve"() {unknown = "s0", value = "dim0_0"} : () -> ()
    "dhlo.solve"() {unknown = "s1", value = "dim1_0"} : () -> ()
    "dhlo.check"() {expected = "1", got = "s0", how = "min", input = 0 : i64, text = "'x' dim 0 (batch) must be at least 1"} : () -> ()
    "dhlo.check"() {expected = "64", got = "s0", how = "max", input = 0 : i64, text = "'x' dim 0 (batch) must be at most 64"} : () -> ()
    "dhlo.check"() {expected = "8", got = "dim0_1", how = "equal", input = 0 : i64, text = "'x' dim 1 must be 8"} : () -> ()
    "dhlo.check"() {expected = "2*s1 + 1", got = "dim0_2", how = "equal", input = 0 : i64, text = "'x' dim 2 must be 2*s1 + 1, where s1 = 'y' dim 0"} : () -> ()
    "dhlo.check"() {expected = "s0 + s1", got = "dim1_1", how = "equal", input = 1 : i64, text = "'y' dim 1 must be batch + s1, where batch = 'x' dim 0, s1 = 'y' dim 0"} : () -> ()
    "dhlo.item"(%arg2) {symbol = "s2"} : (tensor<i64>) -> ()
    "dhlo.check"() {expected = "0", got = "s2", how = "min", input = 2 : i64, text = "'n' must be at least 0"} : () -> ()
    "dhlo.check"() {expected = "9", got = "s2", how = "max", input = 2 : i64, text = "'n' must be at most 9"} : () -> ()
    %0 = "dhlo.neg"(%arg1) : (tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>>) -> tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>>
    return %0 : tensor<?x?xf32, #dhlo.shape<["s1", "s0 + s1"]>>
  }
}
