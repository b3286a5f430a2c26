!x = tensor<?x1x16xf32, #dhlo.shape<["s0", "1", "16"]>>
!flat = tensor<?x16xf32, #dhlo.shape<["s0", "16"]>>
!gate = tensor<?x16x1xf32, #dhlo.shape<["s0", "16", "1"]>>
!state = tensor<?x16x4xf32, #dhlo.shape<["s0", "16", "4"]>>
module attributes {dhlo.symbols = {s0 = [0, 64]}} {
  // What the state is taken on by is computed for all tokens at once, without the dim along which it repeats; the dim whose elements
  // are computed side by side lies last.
  func.func @main(%x: !x {dhlo.name = "x"}, %s: !state {dhlo.name = "s", dhlo.page = 1 : i64}) -> (!flat, !state {dhlo.argument = 1 : i64}) {
    %w = "dhlo.weight"() {name_ = "w"} : () -> tensor<4xf32>
    %flat = "dhlo.reshape"(%x) : (!x) -> !flat
    %column = "dhlo.reshape"(%flat) : (!flat) -> !gate
    %wide = "dhlo.broadcast"(%column) {dims = [0, 1, 2]} : (!gate) -> !state
    %gate = "dhlo.sigmoid"(%wide) : (!state) -> !state
    %weights = "dhlo.broadcast"(%w) {dims = [2]} : (tensor<4xf32>) -> !state
    %new = "dhlo.mul"(%wide, %weights) : (!state, !state) -> !state
    %kept = "dhlo.mul"(%s, %gate) : (!state, !state) -> !state
    %after = "dhlo.add"(%kept, %new) : (!state, !state) -> !state
    %y = "dhlo.reduce"(%after) {dims = [2], how = "sum"} : (!state) -> !flat
    %z = "dhlo.add"(%y, %flat) : (!flat, !flat) -> !flat
    return %z, %after : !flat, !state
  }
}
